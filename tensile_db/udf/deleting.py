"""Jobs that have ended and are wanted no more.

Runs inside PostgreSQL, as the caller.  tensile.delete_jobs, which deletes, checks by itself what the caller
may; here is said what is wrong.
"""

from tensile_db.errors import Forbidden, InvalidRequest
from tensile_db.udf.control import Arguments
from tensile_db.udf.roles import find_role
from tensile_db.udf.session import Session


def delete_jobs(session: Session, arguments: Arguments) -> int:
    """Delete jobs that ended before an instant, of a role or of all that the caller may; return how many.

    Raises InvalidRequest, UndefinedModel where there is no such role, Forbidden.
    """
    session.require_own_identity("delete jobs", hint="Delete them outside of that.")
    if arguments["ended_before"] is None:
        raise InvalidRequest(
            "ended_before is NULL",
            hint="Give an instant, as in tensile_delete_jobs(now() - interval '90 days').",
        )
    name = arguments["role"]
    role = None if name is None else find_role(session, name)
    _require_right(session, name)
    deleted: int = session.value(
        "SELECT tensile.delete_jobs(tensile.sign(), {before}, {role})",
        before=("timestamptz", arguments["ended_before"]),
        role=("oid", role),
    )
    return deleted


def _require_right(session: Session, name: str | None) -> None:
    """Refuse the jobs of others, and one's own where they count for a quota.  Raises Forbidden."""
    row = session.row(
        "SELECT r.rolname::text AS me, pg_catalog.pg_has_role(r.oid, 'tensile_admin', 'USAGE') AS is_admin,"
        " (tensile.quota_of(r.oid)).max_device_seconds AS allowed"
        " FROM pg_catalog.pg_roles r WHERE r.rolname = current_user"
    )
    assert row is not None
    if row["is_admin"]:
        return
    if name not in {None, row["me"]}:
        raise Forbidden(
            f'role "{row["me"]}" may not delete jobs of role "{name}"',
            hint="Leave the role out to delete yours, or ask a member of tensile_admin.",
        )
    if row["allowed"] is not None:
        raise Forbidden(
            f'role "{row["me"]}" has a quota of device time, and its jobs are the record of what it has used',
            hint="Ask a member of tensile_admin to delete them; they count for the quota no more then.",
        )
