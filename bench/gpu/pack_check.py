"""Tries a packed PostgreSQL: a server is started from it, and must load nothing that was not packed."""

import os
from pathlib import Path

import psycopg

from bench.gpu.brought import packing_list
from tensile_db.errors import NotInstalled
from tensile_db.local import LocalCluster

#: In the server's own process: its libraries, and the files of the Python modules that it has imported.
_LOADED = """
    CREATE FUNCTION loaded() RETURNS SETOF text LANGUAGE plpython3u AS $$
        import dataclasses, decimal, json, re, ssl, sys
        with open("/proc/self/maps") as maps:
            mapped = {line.split(None, 5)[5].strip() for line in maps if ".so" in line}
        return sorted(mapped | {m.__file__ for m in sys.modules.values() if getattr(m, "__file__", None)})
    $$
"""


def check(unpacked: Path, folder: Path) -> None:
    """Start a server with its data in a folder, and see what it loads.

    The server's user must reach both.  Raises NotInstalled where it loads what was not packed.
    """
    os.environ["PG_CONFIG"] = str(unpacked / packing_list(unpacked)["bindir"] / "pg_config")
    cluster = LocalCluster(folder / "cluster", durable=False)
    if not cluster.programs.bindir.is_relative_to(unpacked.resolve()):
        raise NotInstalled(f"a newer PostgreSQL is installed than was packed: {cluster.programs.bindir}")
    cluster.start()
    try:
        with psycopg.connect(cluster.dsn()) as connection:
            connection.execute("CREATE EXTENSION plpython3u; CREATE EXTENSION dblink")
            connection.execute(_LOADED)
            connection.execute("SELECT dblink_get_connections()")
            loaded = [path for (path,) in connection.execute("SELECT loaded()")]
    finally:
        cluster.remove()
    others = [path for path in loaded if not path.startswith(str(unpacked.resolve()))]
    if others or not loaded:
        raise NotInstalled(f"the packed server loads what was not packed: {', '.join(others)}")
