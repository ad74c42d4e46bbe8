"""Which machine this is, which of its processes live, and what memory it has left."""

import os
import socket
from pathlib import Path

#: Of the container that this is in, as the kernel's cgroups (version 2) tell of it.
_CONTAINER = Path("/sys/fs/cgroup")


def host_identity() -> str:
    """Return a name under which process numbers mean what they mean here.

    The host's name alone will not do: containers share names and have process numbers of their own, and a
    boot gives all of them out anew.
    """
    parts = [socket.gethostname()]
    if boot := boot_identity():
        parts.append(boot)
    namespace = Path("/proc/self/ns/pid")
    if namespace.exists():
        parts.append(str(namespace.stat().st_ino))
    return "/".join(parts)


def boot_identity() -> str:
    """Return what tells this boot of the machine from others; "" where the system does not say."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip()[:8] if boot.exists() else ""


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


def host_memory_nbytes() -> int:
    """Return the memory of the machine, or of the container where that may have less, in bytes."""
    machine_nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit_nbytes = _container_limit_nbytes()
    return machine_nbytes if limit_nbytes is None else min(machine_nbytes, limit_nbytes)


def available_memory_nbytes() -> int:
    """Return what processes may take before some are killed, in bytes: of the machine, or of a container."""
    found = [host_memory_nbytes()]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            found.append(1024 * int(lines["MemAvailable"].split()[0]))
    limit_nbytes, used = _container_limit_nbytes(), _CONTAINER / "memory.stat"
    if limit_nbytes is not None and used.exists():
        # What files take of it is given up when it is wanted, but for those in memory.
        kinds = dict(line.split() for line in used.read_text().splitlines())
        found.append(max(0, limit_nbytes - int(kinds["anon"]) - int(kinds.get("shmem", 0))))
    return min(found)


def _container_limit_nbytes() -> int | None:
    """Return what a container may take at most; None where there is none, no limit, or none to be seen."""
    try:
        most = (_CONTAINER / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(most) if most.isdigit() else None
