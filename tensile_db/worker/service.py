"""A worker as a whole: registers, runs its controller until told to stop, says goodbye.

`run_worker` is the process that the supervisor keeps running; `Worker` is the same without signals, for a
thread of its own.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.capture.trace import prepare_tracing
from tensile_db.catalog import homes, latency_models, leases, workers, workspaces
from tensile_db.catalog.engine import OWN_SESSION, make_engine
from tensile_db.catalog.install import newest_migration, package_version
from tensile_db.catalog.refusing import POOLED, UNAUTHENTICATED, find_refusal
from tensile_db.catalog.workers import Terms
from tensile_db.errors import Forbidden, InvalidRequest, NotAtHome, NotInstalled
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.controller import Controller
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.opening import open_device
from tensile_db.worker.heartbeat import Heartbeat
from tensile_db.worker.host import host_identity, is_alive
from tensile_db.worker.jobs.caches import cache_name, open_cache, sweep
from tensile_db.worker.jobs.job import JobSetting
from tensile_db.worker.jobs.job_thread import known_architectures, run_job
from tensile_db.worker.jobs.records import is_passing
from tensile_db.worker.latencies.background import BackgroundCalibration
from tensile_db.worker.latencies.calibrating import Calibration
from tensile_db.worker.latencies.hardware import hardware_name, name_for_workspaces
from tensile_db.worker.listener import Listener
from tensile_db.worker.planning.planner import Improver, Planner, SplitFinder
from tensile_db.worker.serving.postman import Postman
from tensile_db.worker.serving.setting import ServingSetting
from tensile_db.worker.turnstile import Turnstile
from tensile_db.worker.workspaces.known import Workspaces

log = logging.getLogger(__name__)

#: How long a thread may hold the interpreter while another wants it.  An op's dispatch takes microseconds,
#: so Python's 5 ms would let one job's capture slow down every op of the others.
_SWITCH_INTERVAL_S = 0.0005

_LONGEST_PAUSE_S = 15.0

#: What to do where sessions are not a worker's own.
_UNPOOLED = (
    "Name the server itself in --dsn, not a pooler as PgBouncer: a worker's sessions keep settings and"
    " prepared statements, and listen.  Clients may come through poolers."
)
#: With what a server refuses who may wait for ever, and what to do about it.
_REFUSALS = {
    "28000": "Name a role that may log in there, or make it one: CREATE ROLE ... LOGIN, pg_hba.conf.",
    UNAUTHENTICATED: "Mend the password in --dsn, PGPASSWORD or ~/.pgpass.",
    POOLED: _UNPOOLED,
    "3D000": "Name another database, or make it, and tensile_db in it: createdb, tensile-db install DSN.",
}


class Worker:
    """One worker of one device; `run` in the thread that is to be its controller's."""

    def __init__(self, config: WorkerConfig) -> None:
        """Connects nothing yet; `stop` may be called from now on."""
        self._config = config
        self._stopped = threading.Event()
        self._controller: Controller | None = None

    @property
    def has_been_up(self) -> bool:
        """Whether nothing kept it from taking jobs."""
        return self._controller is not None

    def stop(self) -> None:
        """Have the jobs leave checkpoints and go back to the queue, and `run` return."""
        self._stopped.set()
        if self._controller is not None:
            self._controller.stop()

    def run(self) -> None:
        """Run until stopped.

        Raises NotInstalled, NotAtHome, Forbidden, NoSuchDevice, UnknownName and InvalidRequest before
        anything runs.
        """
        config = self._config
        cache_dir = open_cache(config)
        device = open_device(config)
        # A connection each for controller, heartbeat and calibration, and one for each job.
        engine = make_engine(config.dsn, application_name="tensile_db worker", pool_size=config.max_jobs + 3)
        planner, improver, split_finder = Planner(), Improver(), SplitFinder()
        turnstile = Turnstile(memory_nbytes=device.spec.memory_nbytes, sharing=config.sharing)
        serving = ServingSetting(
            postman=Postman(config.dsn), batch_size=config.serving_batch, idle_s=config.serving_idle_s
        )
        try:
            registered = self._patiently(
                lambda: self._register(
                    engine,
                    cache_dir,
                    partial(
                        workers.register,
                        device=device.spec,
                        terms=Terms(
                            max_jobs=config.max_jobs,
                            runs_alone=turnstile.policy.alone,
                            lease_s=config.lease_s,
                            cache=cache_name(cache_dir),
                        ),
                    ),
                    keeps_workspaces=device.watches_memory,
                )
            )
            if registered is None:
                return
            worker = registered
            hardware = hardware_name(device.torch_device, threads=config.kernel_threads)
            setting = JobSetting(
                engine=engine,
                dsn=config.dsn,
                device=device,
                cache_dir=cache_dir,
                turnstile=turnstile,
                plan=planner.wait_for_answer,
                foresee=lambda graph: planner.foresee(graph, device.spec),
                find_splits=split_finder.ask,
                hardware=hardware,
                threads=config.kernel_threads,
                serving=serving,
                workspaces=Workspaces(
                    device=device,
                    turnstile=turnstile,
                    hardware=name_for_workspaces(hardware, device.torch_device),
                ),
            )
            calibration = self._background_calibration(engine, device, setting.hardware)
            controller = Controller(
                engine=engine,
                worker=worker,
                device=device.spec,
                planner=planner,
                improver=improver,
                turnstile=turnstile,
                run_job=calibration.around(partial(run_job, setting)),
                max_jobs=config.max_jobs,
                lease_s=config.lease_s,
            )
            heartbeat = Heartbeat(
                engine=engine,
                worker=worker,
                device=device,
                lease_s=config.lease_s,
                attempts=controller.attempts,
                shared_nbytes=controller.shared_nbytes,
                post=controller.post,
            )
            listener = Listener(dsn=config.dsn, poll_s=config.poll_s, wake=controller.wake)
            heartbeat.start()
            listener.start()
            serving.postman.start()
            calibration.start()
            log.info("worker %s is ready: %s, %s bytes", worker, device.spec.name, device.spec.memory_nbytes)
            self._controller = controller
            if self._stopped.is_set():
                controller.stop()
            controller.run()
            listener.stop()
            heartbeat.stop()
            calibration.stop()
            self._say(engine, worker, "gone")
        finally:
            serving.close()
            planner.close()
            improver.close()
            split_finder.close()
            device.close()
            engine.dispose()

    def _background_calibration(self, engine: Engine, device: Device, hardware: str) -> BackgroundCalibration:
        """Return what measures latencies while there are no jobs, where they are unknown and wanted."""
        config = self._config

        def is_needed() -> bool:
            if not config.calibrate:
                return False
            with engine.begin() as conn:
                return not latency_models.has_models(conn, hardware)

        return BackgroundCalibration(
            Calibration(engine, config, hardware=hardware, spec=device.spec, seconds=config.calibration_s),
            is_needed=is_needed,
            idle_s=config.idle_s,
        )

    def _register(
        self, engine: Engine, cache_dir: Path, register: Callable[..., int], *, keeps_workspaces: bool
    ) -> int:
        host = host_identity()
        with engine.begin() as conn:
            _require_own_session(conn)
            _require_catalog(conn)
            _require_ordinary_login(conn)
            if keeps_workspaces:
                workspaces.require(conn)
            # Whose process is no more need not be waited for.
            gone = [row.id for row in workers.on_host(conn, host) if not is_alive(row.pid)]
            taken = leases.expire(conn, gone)
            for worker in gone:
                workers.set_state(conn, worker, "gone")
            if gone:
                log.warning("workers %s died here and left %s jobs, which go on now", gone, taken)
            worker = register(conn, host=host, pid=os.getpid(), version=package_version())
            workers.write_architectures(conn, known_architectures())
            workers.set_state(conn, worker, "ready")
            sweep(conn, cache_dir)
        return worker

    def _patiently(self, work: Callable[[], int]) -> int | None:
        """Try until the database is there; None if told to stop before."""
        pause_s = 0.5
        while not self._stopped.is_set():
            try:
                return work()
            except DBAPIError as error:
                if isinstance(error.orig, InsufficientPrivilege):
                    raise Forbidden(
                        f"the role of --dsn may not be a worker: {error.orig.diag.message_primary}",
                        hint="Connect as a member of tensile_worker: GRANT tensile_worker TO the role.",
                    ) from error
                if not is_passing(error):
                    raise
                _require_no_refusal(self._config.dsn, error)
                log.warning("the database is away or busy, next try in %.1f s: %s", pause_s, error.orig)
                self._stopped.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _say(self, engine: Engine, worker: int, state: str) -> None:
        try:
            with engine.begin() as conn:
                workers.set_state(conn, worker, state)
        except DBAPIError as error:
            log.warning("worker %s is %s and cannot say so: %s", worker, state, error.orig)


def run_worker(config: WorkerConfig) -> None:
    """Run a worker in this process's main thread until SIGTERM or SIGINT."""
    worker = Worker(config)
    prepare_process(worker)
    worker.run()


def prepare_process(worker: Worker) -> None:
    """Give the process, in its main thread, to a worker: its signals, and how its threads take turns."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    prepare_tracing()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: worker.stop())


def _require_no_refusal(dsn: str, error: DBAPIError) -> None:
    """Raise InvalidRequest where a server is there and will let this role in at no time."""
    if getattr(error.orig, "sqlstate", None) is not None:
        # Of a connection that was made.
        return
    hint = _REFUSALS.get(find_refusal(dsn) or "")
    if hint is not None:
        # Of several tries, by other addresses or without TLS, the last.
        *_, said = str(error.orig).strip().splitlines()
        raise InvalidRequest(f"the server of --dsn refuses the worker: {said}", hint=hint) from error


def _require_ordinary_login(conn: Connection) -> None:
    """Refuse a superuser: users' views and policies run in a worker's session."""
    query = "SELECT rolname, rolsuper FROM pg_catalog.pg_roles WHERE rolname = session_user"
    role, is_superuser = conn.exec_driver_sql(query).one()
    if is_superuser:
        raise Forbidden(
            f'the role of --dsn, "{role}", is a superuser, which no worker may be',
            hint="Connect as another: CREATE ROLE ... LOGIN; GRANT tensile_worker TO ...;",
        )


def _require_own_session(conn: Connection) -> None:
    """Refuse what drops the settings that a connection is made with, as a pooler may be told to."""
    if conn.exec_driver_sql(f"SELECT current_setting('{OWN_SESSION}', true)").scalar_one() != "own":
        raise InvalidRequest(
            "the connection of --dsn has not the settings that it was made with", hint=_UNPOOLED
        )


def _require_catalog(conn: Connection) -> None:
    known = conn.exec_driver_sql("SELECT to_regclass('tensile.jobs') IS NOT NULL").scalar_one()
    if not known:
        raise NotInstalled("the database has no tensile_db", hint="Install it first: tensile-db install DSN.")
    found = conn.exec_driver_sql("SELECT max(version_num) FROM tensile.migrations").scalar_one()
    needed = newest_migration()
    # A newer one has all that is needed: workers go on while a database is upgraded.
    if found is None or found < needed:
        raise NotInstalled(
            f"the database's tensile_db is older than this worker: it has migration {found}, and {needed} is"
            " needed",
            hint="Upgrade it first: tensile-db install DSN.",
        )
    if not homes.is_at_home(conn):
        raise NotAtHome
