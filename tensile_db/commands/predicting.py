"""What is known of this machine's latencies, for commands that plan without a worker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tensile_db.errors import NotInstalled

if TYPE_CHECKING:
    from tensile_db.capture.step import CapturedStep
    from tensile_db.latency.predictor import Predicted
    from tensile_db.scheduler.plan import DeviceSpec


def predict(
    step: "CapturedStep", spec: "DeviceSpec", *, folder: Path, dsn: str | None, threads: int | None
) -> "Predicted":
    """Return the latencies of a step's ops on an idle device: as calibrated, else by a roofline.

    dsn: of the database that knows; None: the private cluster of the folder, if it runs.
    threads: of a job's kernels; None: all cores.  Raises NotInstalled; psycopg.Error.
    """
    from tensile_db.latency.predictor import Predicted
    from tensile_db.latency.roofline import predict_latencies_ns

    roofline = Predicted(latencies_ns=predict_latencies_ns(step.graph, spec), learned_count=0)
    known_in = dsn or _private_dsn(folder)
    if spec.name.startswith("sim:") or known_in is None:
        return roofline
    import torch

    from tensile_db.catalog.engine import make_engine
    from tensile_db.worker.latencies.hardware import hardware_name
    from tensile_db.worker.latencies.known import predict_step

    hardware = hardware_name(torch.device(spec.name), threads=threads or os.cpu_count() or 1)
    engine = make_engine(known_in, application_name="tensile_db plan", pool_size=1)
    try:
        with engine.begin() as conn:
            found = conn.exec_driver_sql("SELECT to_regclass('tensile.latency_models') IS NOT NULL")
            if found.scalar_one():
                return predict_step(conn, step, spec, hardware=hardware, utilization=0.0)
    finally:
        engine.dispose()
    if dsn is not None:
        raise NotInstalled(
            "the database has no latencies", hint="Install this version first: tensile-db install DSN."
        )
    return roofline


def _private_dsn(folder: Path) -> str | None:
    if not folder.exists():
        return None
    from tensile_db.local import DEMO_USER, LocalCluster

    cluster = LocalCluster(folder)
    return cluster.dsn(user=DEMO_USER) if cluster.is_running() else None
