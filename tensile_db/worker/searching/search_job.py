"""Jobs that search: they begin trainings, which are jobs of their own, and hold nothing of the device."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import jobs, searches, workers
from tensile_db.catalog.searches import TrialRow
from tensile_db.errors import InvalidRequest, LostLease, TensileError
from tensile_db.udf.request import OPTIMIZERS
from tensile_db.udf.space import check_space, trial_request
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.mailbox import Stopped
from tensile_db.worker.messages import StopReason
from tensile_db.worker.searching.driving import Found, drive

#: Trials say nothing when they end: their rows are looked at so often.
_LOOK_EVERY_S = 0.25

#: Trials that were told to stop do so within an iteration, unless their worker is gone.
_PATIENCE_S = 30.0

#: A refused trial is tried again when one of the search's own has ended, and else so often: each refusal is a
#: line in the server's log.
_RETRY_S = 5.0

#: A quota has no room for a trial; somebody is submitting jobs of the role at this moment.
_LATER = ("53400", "55P03")


def run_search(job: Job) -> None:
    """Search, and end the job with the best trial as its result."""
    search = job.records.must(lambda conn: searches.find(conn, job.row.id))
    if search is None:
        raise InvalidRequest(
            f"job {job.id} does not say what to search for", hint="Submit searches by tensile_search."
        )
    # Whoever may submit a job can write its rows past the functions.
    check_space(search.space, has_others=True)
    job.enter("searching")
    try:
        found = drive(search, _Trials(job), seed=job.row.seed)
    except Stopped as stop:
        if stop.reason is StopReason.CANCELLED:
            _end_trials(job)
        raise
    except LostLease:
        # The trials are another attempt's now.
        raise
    except TensileError:
        _end_trials(job)
        raise
    _save(job, found)


def _save(job: Job, found: Found) -> None:
    best = found.best
    trained = best.result or {}
    result = dict(found.progress) | {
        "loss": trained.get("loss"),
        "metrics": trained.get("metrics"),
    }
    # As many as the best trial's were, which may have stopped early.
    result |= {name: trained[name] for name in ("epochs", "epoch") if name in trained}
    model = {"model_id": best.model_id, "model_version": best.model_version}
    job.records.must(lambda conn: jobs.succeed(conn, job.records.fence, result, **model))


def _end_trials(job: Job) -> None:
    """Have the trials end before the search does: they read the rows that it keeps."""
    deadline = time.monotonic() + _PATIENCE_S
    while job.records.must(lambda conn: searches.cancel_trials(conn, job.row.id)):
        if time.monotonic() > deadline:
            return
        time.sleep(_LOOK_EVERY_S)


class _Trials:
    """The trials in the catalog, as jobs of whoever asked for the search."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told: tuple[Mapping[str, Any], str] | None = None
        self._kinds = job.records.must(workers.architecture_kinds)
        self._counts: tuple[int, int] | None = None
        #: Why the next trial was refused, and until when nobody asks again.
        self._refusal = ""
        self._retry_s = 0.0
        self._known: Sequence[TrialRow] = ()

    def read(self) -> Sequence[TrialRow]:
        self._job.check()
        search, records = self._job.row.id, self._job.records
        counts = records.must(lambda conn: searches.counts(conn, search))
        # All their metrics are read when one of them has begun or ended, and not at every look.
        if counts != self._counts:
            self._counts, self._known = counts, records.must(lambda conn: searches.trials(conn, search))
            self._refusal = ""
        return self._known

    def begin(self, number: int, params: Mapping[str, Any]) -> str:
        if self._refusal and time.monotonic() < self._retry_s:
            return self._refusal
        row, fence = self._job.row, self._job.records.fence
        base = {name: getattr(row, name) for name in _OF_A_TRIAL}
        request = trial_request(base, params, OPTIMIZERS, self._kinds)
        try:
            self._job.records.must(
                lambda conn: searches.begin_trial(
                    conn, fence, row, number=number, params=params, request=request
                ),
                waits_for_locks=False,
            )
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in _LATER:
                raise
            cause = error.orig
            assert isinstance(cause, psycopg.Error)
            self._refusal, self._retry_s = str(cause.diag.message_primary), time.monotonic() + _RETRY_S
            return self._refusal
        return ""

    def tell(self, progress: Mapping[str, Any], wait_reason: str) -> None:
        if self._told != (progress, wait_reason):
            self._told = (progress, wait_reason)
            self._job.records.note(result=dict(progress), wait_reason=wait_reason or None)
            self._job.records.flush()

    def pause(self) -> None:
        self._job.mailbox.wait_for_stop(_LOOK_EVERY_S)
        self._job.check()


#: What a trial may have of its own.
_OF_A_TRIAL = ("architecture", "epochs", "batch_size", "optimizer", "learning_rate", "seed", "options")
