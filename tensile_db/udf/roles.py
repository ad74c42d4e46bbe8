"""What administrators give to roles: the use of tensile_db, and how much of the devices.

Runs inside PostgreSQL, as the caller.
"""

import difflib
from typing import Any

from tensile_db.errors import NEAREST, Forbidden, InvalidRequest, UndefinedModel, format_value
from tensile_db.udf.powers import power_of
from tensile_db.udf.session import Session

Arguments = dict[str, Any]

_LEAST = {
    "max_concurrent_jobs": 0,
    "max_device_nbytes": 1,
    "max_device_seconds": 0,
    "max_serving_requests": 0,
}
_IS_MEMBER = "SELECT pg_catalog.pg_has_role({member}, {of}, 'MEMBER')"
_GROUPS = ("tensile_user", "tensile_admin", "tensile_worker", "tensile_priority")


def grant_usage(session: Session, arguments: Arguments) -> None:
    """Let a role use tensile_db, and let workers read tables as this role.

    Raises InvalidRequest, UndefinedModel, Forbidden.
    """
    name, role = _own_role(session, arguments["role"], "a user's role")
    if (power := power_of(session, role)) is not None:
        raise Forbidden(
            f'"{name}" {power}, and every worker could become it',
            hint="Grant an ordinary role, and SET ROLE to it for training.",
        )
    if session.value(_IS_MEMBER, member=("oid", role), of=("name", "tensile_worker")):
        raise Forbidden(f'"{name}" works, and what works does not train', hint="Give it to another role.")
    quoted = session.quote_name(name)
    session.run(f"GRANT {'tensile_admin' if arguments['admin'] else 'tensile_user'} TO {quoted}")
    session.run(f"GRANT {quoted} TO tensile_worker")


def grant_worker(session: Session, arguments: Arguments) -> None:
    """Let a role log in as a worker.  Raises InvalidRequest, UndefinedModel, Forbidden."""
    name, role = _own_role(session, arguments["role"], "a worker's login")
    if (power := power_of(session, role)) is not None:
        raise Forbidden(
            f'"{name}" {power}, which no worker may be', hint="Give workers a login of their own."
        )
    if session.value(_IS_MEMBER, member=("name", "tensile_worker"), of=("oid", role)):
        raise Forbidden(
            f'"{name}" uses tensile_db, and what trains does not work',
            hint="Give workers a login of their own.",
        )
    session.run(f"GRANT tensile_worker TO {session.quote_name(name)}")


def _own_role(session: Session, name: str | None, what: str) -> tuple[str, int]:
    """Return the name and the OID of a role that is somebody's.  Raises InvalidRequest, UndefinedModel."""
    if name is None:
        raise InvalidRequest("the role is NULL", hint=f"Give {what}.")
    role = find_role(session, name)
    if name in _GROUPS:
        raise InvalidRequest(f'"{name}" is a group of tensile_db itself', hint=f"Give {what}.")
    # Of which there are more with each version, and nobody logs in as any.
    if name.startswith("pg_"):
        raise InvalidRequest(f'"{name}" is a role of PostgreSQL itself', hint=f"Give {what}.")
    return name, role


def set_quota(session: Session, arguments: Arguments) -> None:
    """Set all limits of a role; null stands for no limit, and as the role for all that have no quota.

    Tells of members for whom it does not count, and of jobs that it lets go on.
    Raises Forbidden, UndefinedModel, InvalidRequest.
    """
    may = session.value("SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE')")
    if not may:
        raise Forbidden(
            f'role "{session.value("SELECT current_user::text")}" may not set quotas',
            hint="Ask a member of tensile_admin; tensile.quota_usage shows yours.",
        )
    for limit, least in _LEAST.items():
        value = arguments[limit]
        # JSON has no infinity and no NaN: they come as texts.
        if isinstance(value, str) or (value is not None and value < least):
            raise InvalidRequest(
                f"{limit} must be at least {least}, got {format_value(value)}",
                hint="Leave it out for no limit.",
            )
    name = arguments["role"]
    role = 0 if name is None else find_role(session, name)
    session.value(
        "INSERT INTO tensile.quotas"
        " (role_oid, role, max_concurrent_jobs, max_device_nbytes, max_device_seconds, max_serving_requests)"
        " VALUES ({oid}, {name}, {jobs}, {nbytes}, {seconds}, {requests})"
        " ON CONFLICT (role_oid) DO UPDATE SET role = excluded.role,"
        " max_concurrent_jobs = excluded.max_concurrent_jobs,"
        " max_device_nbytes = excluded.max_device_nbytes,"
        " max_device_seconds = excluded.max_device_seconds,"
        " max_serving_requests = excluded.max_serving_requests, updated_at = pg_catalog.now()"
        " RETURNING role_oid",
        oid=("oid", role),
        name=("text", name),
        jobs=("integer", arguments["max_concurrent_jobs"]),
        nbytes=("bigint", arguments["max_device_nbytes"]),
        seconds=("float8", arguments["max_device_seconds"]),
        requests=("integer", arguments["max_serving_requests"]),
    )
    if name is not None:
        _tell_of_members(session, name, role)
    _tell_of_paused(session, role)


def _tell_of_members(session: Session, name: str, role: int) -> None:
    """Say of a group that its members have other quotas."""
    is_group = session.value(
        "SELECT NOT r.rolcanlogin AND EXISTS ("
        "SELECT FROM pg_catalog.pg_auth_members m WHERE m.roleid = r.oid)"
        " FROM pg_catalog.pg_roles r WHERE r.oid = {role}",
        role=("oid", role),
    )
    if is_group:
        session.notice(
            f'the quota of "{name}" counts what is submitted after SET ROLE to it; what its members submit as'
            " themselves counts for their own"
        )


def _tell_of_paused(session: Session, role: int) -> None:
    """Say which jobs of a role, or of all, are paused for device time that they may use again."""
    jobs = session.value(
        "SELECT pg_catalog.array_agg(p.id ORDER BY p.id) FROM (SELECT j.id FROM tensile.jobs j,"
        " LATERAL (SELECT (tensile.quota_of(j.submitted_by)).max_device_seconds AS allowed) q"
        " WHERE j.state = 'paused' AND j.pause_reason IS NOT NULL AND {role} IN (0, j.submitted_by)"
        " AND (q.allowed IS NULL OR tensile.device_seconds_of(j.submitted_by) < q.allowed)"
        " ORDER BY j.id LIMIT 11) p",
        role=("oid", role),
    )
    if jobs:
        named = ", ".join(map(str, jobs[:10])) + (" and others" if len(jobs) > 10 else "")
        session.notice(f"jobs that a quota has paused may go on now, each by tensile_resume: {named}")


def find_role(session: Session, name: str) -> int:
    """Return a role's OID.  Raises UndefinedModel."""
    role: int | None = session.value(
        "SELECT (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = {name})", name=("name", name)
    )
    if role is None:
        known = [row["name"] for row in session.rows("SELECT rolname::text AS name FROM pg_catalog.pg_roles")]
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=NEAREST)
        raise UndefinedModel(
            f'no role "{name}"', hint=f'Did you mean "{nearest[0]}"?' if nearest else "CREATE ROLE first."
        )
    return role
