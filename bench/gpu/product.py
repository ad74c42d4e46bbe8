"""The product as its users have it: a private server, a worker process, and trainings asked for in SQL.

Imports what a bare machine lacks: only after brought.provide().
"""

import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from bench.gpu.product_requests import Images, Request
from bench.served import server_in
from tensile_db.local import LocalCluster
from tensile_db.local_account import SERVER_USER

_ROOT = Path(__file__).parents[2]
#: Who runs the server where root asks and the distribution's own user is not there.
_NOBODY = "nobody"

_START_S = 60.0
#: For a worker to end that has no jobs, and for one that is not waited for.
_STOP_S, _KILL_S = 20.0, 1.0

_TRAIN = """
    SELECT * FROM tensile_train(%(architecture)s, 'images', model => %(model)s, epochs => %(epochs)s,
        batch_size => %(batch_size)s, optimizer => %(optimizer)s, learning_rate => %(learning_rate)s,
        validation => %(validation)s, seed => %(seed)s, memory_limit => %(memory_limit)s,
        options => %(options)s)
"""
#: Of all attempts at a job.
_JOB = """
    SELECT j.attempt, j.iteration, j.iterations_total, j.device_seconds, j.vanilla_peak_nbytes,
        m.peak_nbytes, m.device_peak_nbytes, m.guaranteed_peak_nbytes
    FROM tensile.jobs j CROSS JOIN LATERAL (
        SELECT max(k.peak_nbytes) AS peak_nbytes, max(k.device_peak_nbytes) AS device_peak_nbytes,
            max(k.guaranteed_peak_nbytes) AS guaranteed_peak_nbytes
        FROM tensile.memory_peaks k WHERE k.job_id = j.id) m
    WHERE j.id = %s
"""
_PLANS = """
    SELECT reason, policy, budget_nbytes, guaranteed_peak_nbytes, measured_peak_nbytes, swap_out_count,
        swap_nbytes, recompute_count, time_ns, vanilla_time_ns, planning_ns, adopted_at_iteration
    FROM tensile.plan_summary WHERE job_id = %s ORDER BY version
"""
_EVENTS = "SELECT kind, detail FROM tensile.job_events WHERE job_id = %s ORDER BY id"


@contextmanager
def server(folder: Path, images: Images) -> Iterator[LocalCluster]:
    """Start a private server with tensile_db in it, and `images` as a table of role bench, who may train."""
    with server_in(folder / "cluster", server_user=_server_user()) as cluster:
        with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE images (id int PRIMARY KEY, image bytea, label int)")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO images VALUES (%s, %s, %s)", images.rows())
            connection.execute("ALTER TABLE images OWNER TO bench")
        yield cluster


def _server_user() -> str:
    try:
        pwd.getpwnam(SERVER_USER)
    except KeyError:
        return _NOBODY
    return SERVER_USER


class Site:
    """A server with a worker, and who asks them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        #: As the superuser, who sees everything.
        self.admin = psycopg.connect(cluster.dsn(), autocommit=True, row_factory=dict_row)

    def rows(self, statement: str, *arguments: object) -> list[dict[str, Any]]:
        """Run a statement as the superuser and return its rows."""
        return self.admin.execute(statement.encode(), arguments).fetchall()

    def ask(self, statement: str, arguments: Any, *, at_most_s: float) -> list[dict[str, Any]]:
        """Run a statement as role bench, on a connection of its own, and return its rows.

        Raises psycopg.errors.QueryCanceled where it takes longer.
        """
        dsn = self._cluster.dsn(user="bench")
        with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
            limit = sql.Literal(f"{max(1, int(at_most_s * 1000))}ms")
            connection.execute(sql.SQL("SET statement_timeout = {}").format(limit))
            return connection.execute(statement.encode(), arguments).fetchall()

    def train(self, request: Request, memory_limit: int | None, *, at_most_s: float) -> dict[str, Any]:
        """Train from SQL; return the function's row, and the seconds that its caller waited."""
        arguments = request.arguments() | {
            "memory_limit": memory_limit,
            "options": json.dumps(request.options),
        }
        begin_s = time.monotonic()
        (row,) = self.ask(_TRAIN, arguments, at_most_s=at_most_s)
        return row | {"waited_s": round(time.monotonic() - begin_s, 2)}

    def worker_pid(self) -> int | None:
        """Return the process number of the worker that is ready, or None."""
        ready = self.rows("SELECT pid FROM tensile.workers WHERE state = 'ready' ORDER BY id DESC LIMIT 1")
        return ready[0]["pid"] if ready else None

    @contextmanager
    def worker(self, device: str, memory_nbytes: int, folder: Path, log: Path) -> Iterator[float]:
        """Run `tensile-db worker` as a process of its own; gives the seconds until it was ready.

        Raises RuntimeError with what its log says where it ends or is not ready in time.
        """
        command = [sys.executable, "-m", "tensile_db.cli", "worker", "--device", device]
        command += ["--dsn", self._cluster.dsn(user="bench_worker"), "--memory", str(memory_nbytes)]
        # Nothing is measured in the background while jobs are timed.
        command.append("--no-calibrate")
        if device == "cpu":
            # Sums over several threads may be in another order than eager's.
            command += ["--threads", "1"]
        cache = folder / "cache"
        cache.mkdir(exist_ok=True)
        begin_s = time.monotonic()
        with log.open("wb") as said:
            process = subprocess.Popen(
                [*command, "--cache", str(cache)], cwd=_ROOT, stdout=said, stderr=subprocess.STDOUT
            )
        patience_s = _KILL_S
        try:
            while self.worker_pid() is None:
                if process.poll() is not None or time.monotonic() - begin_s > _START_S:
                    raise RuntimeError(
                        f"the worker does not start: {log.read_text(errors='replace')[-1500:]}"
                    )
                time.sleep(0.05)
            yield round(time.monotonic() - begin_s, 2)
            patience_s = _STOP_S
        finally:
            _end(process, patience_s)


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask the supervisor to stop; the second time it kills the worker, which is in a session of its own."""
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
    process.kill()
    process.wait()


class Asked:
    """A training asked for in a thread of its own."""

    def __init__(self, site: Site, request: Request, memory_limit: int | None, *, at_most_s: float) -> None:
        self._found: dict[str, Any] = {}
        self._failure: BaseException | None = None

        def ask() -> None:
            try:
                self._found = site.train(request, memory_limit, at_most_s=at_most_s)
            except BaseException as error:  # noqa: BLE001  # raised where the row is asked for
                self._failure = error

        self._thread = threading.Thread(target=ask, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether there is a row, or none to come."""
        return not self._thread.is_alive()

    def row(self) -> dict[str, Any]:
        """Wait for the training's row and return it; raises what its statement raised."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._found


def kill_midway(site: Site, model: str, asked: Asked, *, at_most_s: float) -> dict[str, Any]:
    """Kill the worker with SIGKILL when the model's training has its first checkpoint; return where it was.

    Raises RuntimeError where the training ends before.
    """
    query = """
        SELECT j.id, j.iteration, max(c.iteration) AS checkpoint FROM tensile.jobs j
        JOIN tensile.checkpoints c ON c.job_id = j.id AND c.complete
        WHERE j.model = %s AND j.state = 'running' GROUP BY j.id
    """
    until_s = time.monotonic() + at_most_s
    while not (found := site.rows(query, model)):
        if asked.has_ended or time.monotonic() > until_s:
            raise RuntimeError("the training was not seen under way with a checkpoint")
        time.sleep(0.005)
    pid = site.worker_pid()
    assert pid is not None, "no worker is ready, and yet a training is under way"
    assert b"tensile_db" in Path(f"/proc/{pid}/cmdline").read_bytes(), f"process {pid} is no worker"
    os.kill(pid, signal.SIGKILL)
    return {
        "killed_pid": pid,
        "killed_at_iteration": found[0]["iteration"],
        "checkpoint": found[0]["checkpoint"],
    }


def what_the_catalog_has(site: Site, job: int) -> dict[str, Any]:
    """Return a job's peaks and limits, iteration time, plans and events."""
    (row,) = site.rows(_JOB, job)
    plans, events = site.rows(_PLANS, job), site.rows(_EVENTS, job)
    row["iteration_ns"] = int(1e9 * row.pop("device_seconds") / max(1, row["iteration"]))
    return row | {"plans": plans, "events": _shortened(events)}


def _shortened(events: Sequence[dict[str, Any]]) -> list[list[object]]:
    return [[event["kind"], json.dumps(event["detail"], default=str)[:300]] for event in events]
