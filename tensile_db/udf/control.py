"""What the owner of a job asks of it while it is under way: to stop, to rest, to go on, to make way.

Runs inside PostgreSQL, as the caller, whose rights and row-level security decide.  What is asked for stands
in the job's row; its worker hears of it at COMMIT, and a trigger makes a job that no worker holds follow at
once.
"""

from typing import Any

from tensile_db.errors import InvalidRequest, QuotaExceeded, Unsupported, WrongState
from tensile_db.udf import wait
from tensile_db.udf.session import Session

Arguments = dict[str, Any]


def cancel(session: Session, arguments: Arguments) -> bool:
    """Ask for a job's end; false where it has ended already."""
    job = job_of(arguments)
    asked: bool = session.value("SELECT tensile.request_cancel({job})", job=("bigint", job))
    if not asked:
        wait.read_status(session, job)
    return asked


def pause(session: Session, arguments: Arguments) -> bool:
    """Ask a training job to rest; false where that was asked for already.

    Raises UndefinedModel, WrongState, Unsupported.
    """
    job = job_of(arguments)
    if _set_pause(session, job, pause=True):
        return True
    status = _status_of_unfinished(session, job, "be paused")
    if status["kind"] == "search":
        raise Unsupported(
            f"job {job} is a search, which computes nothing that could be paused",
            hint="Its trials can be: tensile.trials has their jobs. Paused ones count towards max_parallel.",
        )
    if status["kind"] != "train":
        raise Unsupported(
            f"job {job} is of kind {status['kind']}, and only training jobs can be paused",
            hint=f"The others have nothing to go on from; tensile_cancel({job}) ends it.",
        )
    if status["cancel_requested"]:
        raise WrongState(
            f"job {job} is being cancelled and cannot be paused",
            hint="A cancellation cannot be taken back; submit the job again.",
        )
    return False


def resume(session: Session, arguments: Arguments) -> bool:
    """Let a paused job go on, or one not be paused that was to be; false where neither was so.

    Raises UndefinedModel, WrongState, QuotaExceeded where it would be paused again.
    """
    job = job_of(arguments)
    _require_device_time(session, job)
    if _set_pause(session, job, pause=False):
        return True
    _status_of_unfinished(session, job, "be resumed")
    return False


def set_priority(session: Session, arguments: Arguments) -> bool:
    """Give a job another priority; false where it has this one already.

    Raises UndefinedModel, WrongState; the table refuses what the caller has no right to.
    """
    job, priority = job_of(arguments), arguments["priority"]
    if priority is None:
        raise InvalidRequest("priority is NULL", hint="The default is 0, and higher goes first.")
    changed = session.row(
        "UPDATE tensile.jobs SET priority = {priority} WHERE id = {job} AND priority <> {priority}"
        " AND state IN ('queued', 'waiting', 'running', 'paused') RETURNING id",
        job=("bigint", job),
        priority=("integer", priority),
    )
    if changed is not None:
        return True
    _status_of_unfinished(session, job, "be given a priority")
    return False


def job_of(arguments: Arguments) -> int:
    """Return the call's job_id.  Raises InvalidRequest where it is null."""
    job: int | None = arguments["job_id"]
    if job is None:
        raise InvalidRequest("job_id is NULL", hint="Give the id that tensile_submit returned.")
    return job


def _require_device_time(session: Session, job: int) -> None:
    """Refuse to resume a job whose role has used up its device time; workers would let it rest again."""
    over = session.row(
        "SELECT coalesce(o.rolname, j.owner) AS owner, r.used, (r.quota).max_device_seconds AS allowed"
        " FROM tensile.jobs j LEFT JOIN pg_catalog.pg_roles o ON o.oid = j.submitted_by,"
        " LATERAL (SELECT tensile.device_seconds_of(j.submitted_by) AS used,"
        " tensile.quota_of(j.submitted_by) AS quota) r"
        " WHERE j.id = {job} AND j.pause_requested AND r.used >= (r.quota).max_device_seconds",
        job=("bigint", job),
    )
    if over is not None:
        raise QuotaExceeded(
            f'role "{over["owner"]}" has used {over["used"]:.1f} seconds of device time,'
            f" and may use {over['allowed']:g}",
            hint="A member of tensile_admin can raise the quota: tensile_set_quota.",
        )


def _set_pause(session: Session, job: int, *, pause: bool) -> bool:
    changed = session.row(
        "UPDATE tensile.jobs SET pause_requested = {pause} WHERE id = {job} AND pause_requested <> {pause}"
        " AND kind = 'train' AND NOT cancel_requested"
        " AND state IN ('queued', 'waiting', 'running', 'paused') RETURNING id",
        job=("bigint", job),
        pause=("boolean", pause),
    )
    return changed is not None


def _status_of_unfinished(session: Session, job: int, verb: str) -> dict[str, Any]:
    """Return the job's row.  Raises UndefinedModel, and WrongState where the job has ended."""
    status = wait.read_status(session, job)
    if status["state"] in wait.ENDED:
        raise WrongState(
            f"job {job} has ended ({status['state']}) and cannot {verb}",
            hint="tensile.queue and tensile.progress have the jobs that have not.",
        )
    return status
