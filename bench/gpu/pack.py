"""Packs what a bare GPU machine lacks of the product into one file: PostgreSQL, and Python packages.

    python -m bench.gpu.pack [--python 3.12 ...]        make pack-postgres PACK="--python 3.12"

Writes build/postgres/packed.tar.xz, which bench.gpu.brought unpacks where it is needed: nothing of it has to
be installed there, and it works from whatever folder.  It holds this machine's PostgreSQL with plpython3u and
dblink, and packages for each Python named.  Packing wants a network, or pip's cache, for the packages alone.
"""

import argparse
import json
import platform
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu import brought, pack_check, pack_packages, pack_server
from bench.gpu.brought import PACKED, PACKING_LIST
from tensile_db.local_postgres import find_postgres

#: For which PyTorch has wheels, and so has the product.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main() -> None:
    """Pack, try what was packed, and say how large it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions on the other machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tensile-pack-") as name:
        # The server's user reads it when it is tried.
        folder = Path(name)
        folder.chmod(0o755)
        packed = pack(folder / "packed", tuple(options.python))
        print(f"packing {packed['postgres']} and packages for Python {', '.join(packed['packages'])}")
        write(folder / "packed", PACKED)
        begin_s = time.monotonic()
        pack_check.check(brought.unpack(folder), folder)
    print(f"tried: the server runs by what was packed alone ({time.monotonic() - begin_s:.0f} s)")
    print(f"{PACKED.relative_to(Path.cwd())}: {PACKED.stat().st_size / 2**20:.1f} MiB")


def pack(folder: Path, pythons: tuple[str, ...]) -> dict[str, Any]:
    """Lay out in a folder what is to be packed; return the packing list, which is a file there, too.

    Raises NotInstalled where this machine has no PostgreSQL with plpython3u.
    """
    programs = find_postgres()
    bindir = pack_server.lay_out(programs, folder)
    packing_list: dict[str, Any] = {
        "postgres": f"PostgreSQL {programs.version}",
        "bindir": str(bindir),
        "machine": platform.machine(),
        "packages": {version: pack_packages.lay_out(version, folder / "packages") for version in pythons},
    }
    (folder / PACKING_LIST).write_text(json.dumps(packing_list, indent=1) + "\n")
    return packing_list


def write(folder: Path, path: Path) -> None:
    """Write a folder's contents to a compressed tar file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(partial, "w:xz", preset=9) as archive:
        archive.add(folder, ".", filter=anonymous)
    partial.replace(path)


if __name__ == "__main__":
    main()
