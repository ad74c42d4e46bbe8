"""Which machine this is, and which of its processes live."""

import os
import socket
from pathlib import Path


def host_identity() -> str:
    """Return a name under which process numbers mean what they mean here.

    The host's name alone will not do: containers share names and have process numbers of their own, and a
    boot gives all of them out anew.
    """
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        parts.append(boot.read_text().strip()[:8])
    namespace = Path("/proc/self/ns/pid")
    if namespace.exists():
        parts.append(str(namespace.stat().st_ino))
    return "/".join(parts)


def is_alive(pid: int) -> bool:
    """Tell whether another process of this machine has that number."""
    if pid == os.getpid():
        # Whoever had our number before us is gone.
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
