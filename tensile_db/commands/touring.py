"""`tensile-db demo`: the tour on the private cluster."""

import time

from tensile_db.commands.console import out, step
from tensile_db.commands.private import DEFAULT_FOLDER, PICTURE, Folder, bring_up, show_what_next
from tensile_db.commands.starting import start_worker
from tensile_db.commands.worker_options import WorkerOptions


def demo(folder: Folder = DEFAULT_FOLDER) -> None:
    """Train real networks on real images, alone and together; at most ten minutes on two cores."""
    begin_s = time.monotonic()
    bring_up(folder)
    with step("loading the demo"):
        from tensile_db.demo.sessions import Psql
        from tensile_db.demo.tour import Tour, TourSettings
        from tensile_db.local import DEMO_USER, LocalCluster

    settings = TourSettings()
    start_worker(folder, WorkerOptions(memory_nbytes=settings.memory_nbytes), fresh=True)
    cluster = LocalCluster(folder)
    dsn = cluster.dsn(user=DEMO_USER)
    picture = cluster.folder / PICTURE
    Tour(console=out, psql=Psql(cluster.programs.program("psql"), dsn), dsn=dsn, settings=settings).run(
        picture
    )
    elapsed_s = int(time.monotonic() - begin_s)
    out.print(
        f"Done in {elapsed_s // 60} min {elapsed_s % 60} s.  The worker and its tables are still there:"
    )
    show_what_next(folder)
