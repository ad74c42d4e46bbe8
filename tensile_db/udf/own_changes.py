"""What a transaction keeps from others until it commits, so that it would wait for itself.

Nobody notices such a deadlock: a worker waits for the session's locks, and the session for the worker.

Runs inside PostgreSQL, in the caller's transaction.
"""

from tensile_db.errors import WrongState
from tensile_db.udf.session import Session
from tensile_db.udf.wait import ENDED, read_status

# A row that one sees and that a transaction under way has made is one's own, subtransactions included.  The
# row has the lower 32 bits of that transaction's number, which is the one with these nearest to the next one.
_IS_CHANGED = """
WITH made AS (
    SELECT j.xmin::text::bigint AS low,
           pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint + 2147483648 AS beyond
    FROM tensile.jobs j WHERE j.id = {job})
SELECT pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL
       AND pg_catalog.pg_xact_status((beyond - (beyond - low) % 4294967296)::text::xid8) = 'in progress'
FROM made
"""


def require_committed(session: Session, job: int) -> None:
    """Refuse to wait for a job that cannot go on before this transaction commits.

    Raises WrongState, and UndefinedModel where the caller has no such job.
    """
    # First, for a transaction with a snapshot of its own asks for the status where nothing of it is seen.
    if session.value(_IS_CHANGED, job=("bigint", job)):
        if _is_unseen(session, job):
            raise WrongState(
                f"job {job} was submitted by this transaction, and no worker sees it before that is"
                " committed",
                hint="COMMIT between tensile_submit and tensile_wait, or call tensile_train.",
            )
        raise WrongState(
            f"job {job} was changed by this transaction, and its worker waits for that to be committed",
            hint="COMMIT between what pauses, resumes, cancels or moves a job and tensile_wait.",
        )
    status = read_status(session, job)
    if status["state"] in ENDED or (status["state"] == "running" and status["phase"] != "reading"):
        return
    if session.value(
        "SELECT tensile.has_locked(pg_catalog.pg_backend_pid(), {source})",
        source=("oid", status["source_oid"]),
    ):
        raise WrongState(
            f"this transaction has locked {status['source_name']}, which a worker is to read",
            hint="COMMIT what truncated, altered or locked it first.",
        )


def _is_unseen(session: Session, job: int) -> bool:
    found = session.value("SELECT tensile.job_status_now(tensile.sign(), {job})::text", job=("bigint", job))
    return found is None
