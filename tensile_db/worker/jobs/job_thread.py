"""One job in its thread, from its claim to its end, and the boundary that no exception passes.

Whatever ends a job is written to its row here, and touches no other job: a TensileError with its own
SQLSTATE and hint, anything else as an internal error whose text goes to the job's events.
"""

import logging
import shutil
import traceback
from collections.abc import Callable, Iterable
from functools import partial

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tensile_db.capture.networks.architectures import known_names
from tensile_db.catalog import jobs, searches, workers
from tensile_db.catalog.workers import CATALOG_KINDS
from tensile_db.errors import DeviceLost, DoesNotFit, LostLease, NotInstalled, TensileError, UnknownName
from tensile_db.scheduler.analysis.once import forget_all
from tensile_db.worker.execution.device_failures import device_failures
from tensile_db.worker.handover import Held
from tensile_db.worker.jobs.caches import sweep
from tensile_db.worker.jobs.job import Job, JobSetting
from tensile_db.worker.jobs.kinds import KINDS
from tensile_db.worker.jobs.records import Records, is_connection_loss
from tensile_db.worker.mailbox import Stopped
from tensile_db.worker.messages import Event, JobEnded, StopReason
from tensile_db.worker.refusals import refuse
from tensile_db.worker.searching.trial import Pruned

log = logging.getLogger(__name__)

#: Stopped so, the job goes on later, perhaps here, with the rows that it has read.
_GOES_ON = (StopReason.PAUSED, StopReason.SHUTDOWN, StopReason.MOVED, StopReason.LEASE_LOST)


def run_job(setting: JobSetting, held: Held, post: Callable[[Event], None]) -> None:
    """Run a job to its end in the calling thread; never raises."""
    # While the worker is being stopped, nobody waits for a database that is away; a pause or a move has time.
    records = Records(
        setting.engine,
        held.row.fence,
        give_up=lambda: held.mailbox.stop_reason not in (None, StopReason.PAUSED, StopReason.MOVED),
    )
    job = Job(setting=setting, held=held, records=records, post=post)
    try:
        end = _run(job)
        goes_on = held.mailbox.stop_reason in _GOES_ON
        if end is not None:
            goes_on |= bool(_write_end(job, end))
        # A trial's rows are its search's, and others read them.
        if not goes_on and held.row.search_id is None:
            shutil.rmtree(job.folder, ignore_errors=True)
        if not goes_on:
            _sweep(setting)
    except LostLease as loss:
        log.warning("%s", loss.message)
    except DeviceLost as loss:
        # Its lease ends with the worker, and the job goes on from its last checkpoint.
        log.warning("job %s leaves a lost device: %s", job.id, loss.message)
    except (DBAPIError, psycopg.Error) as error:
        # Its lease runs out, and the job goes on from its last checkpoint.
        log.error("the end of job %s could not be written: %s", job.id, error)
    except BaseException:
        log.exception("job %s ended, and its end could not be written", job.id)
    finally:
        # Else the graphs of the last thirty jobs would stay, with what is known of them.
        forget_all()
        post(JobEnded(job=job.id))
        if job.has_lost_device:
            setting.device_loss.end()


def known_architectures() -> Iterable[tuple[str, str, str]]:
    """Return what this worker can train, as rows of tensile.architectures."""
    return [(name, CATALOG_KINDS.get(kind, kind), to) for name, kind, to in known_names()]


#: Writes a job's end; true: it goes on elsewhere.
_End = Callable[[Connection], bool | None]


def _run(job: Job) -> _End | None:
    """Do the work; return what is left to write of its end, if anything is."""
    fence = job.records.fence
    try:
        # Around all of it: a lost device refuses also to give memory back.
        with device_failures(job.setting.device):
            KINDS[job.row.kind](job)
    except Stopped as stop:
        return _end_of_stopped(job, stop.reason)
    except Pruned as pruned:
        return partial(searches.prune, fence=fence, reason=pruned.reason, value=pruned.value)
    except LostLease:
        raise
    except DoesNotFit as error:
        log.info("job %s is refused: %s", job.id, error.message)
        device_nbytes = job.setting.device.spec.memory_nbytes
        return partial(refuse, fence=fence, refusal=error, device_nbytes=device_nbytes)
    except TensileError as raised:
        failure = _as_not_installed(job, raised) if isinstance(raised, UnknownName) else raised
        if isinstance(failure, DeviceLost):
            if not job.setting.device_loss.meet():
                raise
            job.has_lost_device = True
        log.info("job %s failed: %s (%s)", job.id, failure.message, failure.sqlstate)
        return partial(
            jobs.fail, fence=fence, sqlstate=failure.sqlstate, message=failure.message, hint=failure.hint
        )
    except BaseException as error:
        # SystemExit, too, would end the thread without a word, and the job would seem to run.
        if isinstance(error, DBAPIError | psycopg.Error) and is_connection_loss(error):
            # Not the job's fault: it goes on from its last checkpoint.
            raise
        log.exception("job %s failed by a defect", job.id)
        return partial(
            jobs.fail,
            fence=fence,
            sqlstate=TensileError.sqlstate,
            message=f"internal error: {type(error).__name__}: {error}",
            hint="The worker's log and the job's row in tensile.job_events have the particulars.",
            detail=traceback.format_exc(limit=-8),
        )
    return None


def _as_not_installed(job: Job, unknown: UnknownName) -> TensileError:
    """Return the error of an architecture that is unknown to this worker alone, else what is given.

    Requests name none that no worker has told of, and models learned with one that was known.
    """
    if unknown.kind != "architecture":
        return unknown
    offered_by = job.records.must(lambda conn: workers.offered_by(conn, unknown.name))
    if offered_by is None and job.row.model_id is None:
        return unknown
    of = "" if offered_by is None else f" ({offered_by})"
    return NotInstalled(
        f'the package that offers architecture "{unknown.name}"{of} is not installed for this worker',
        hint="Install it in the worker's environment, in a version that offers it, and restart the worker.",
    )


def _end_of_stopped(job: Job, reason: StopReason) -> _End | None:
    fence = job.records.fence
    match reason:
        case StopReason.CANCELLED:
            return partial(jobs.cancel, fence=fence)
        case StopReason.PAUSED | StopReason.SHUTDOWN | StopReason.MOVED:
            # Resumed meanwhile, it is queued; paused as the worker shuts down, it rests.
            return partial(jobs.give_back, fence=fence)
        case StopReason.LEASE_LOST:
            return None


def _sweep(setting: JobSetting) -> None:
    """Remove the rows of jobs that have gone on elsewhere, and ended there."""
    try:
        with setting.engine.begin() as conn:
            sweep(conn, setting.cache_dir)
    except DBAPIError as error:
        log.warning("rows that nobody needs may be left in %s: %s", setting.cache_dir, error.orig)


def _write_end(job: Job, end: _End) -> bool | None:
    try:
        return job.records.must(end)
    except LostLease:
        raise
    except (DBAPIError, psycopg.Error) as error:
        if is_connection_loss(error):
            raise
        # A record put off may be what cannot be written.
        job.records.drop()
        return job.records.must(end)
