"""tensile_doctor: what is installed, running, reachable, mismatched.

Runs inside PostgreSQL, as the caller; finds fault with nothing that the caller could not look up.
"""

import sys
from typing import Any

from tensile_db.errors import NotAtHome, format_nbytes
from tensile_db.udf.powers import powers_of_workers
from tensile_db.udf.session import Session


def doctor(session: Session, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each check: its name, ok | warning | problem, what was found, and what to do."""
    facts = session.row(
        "SELECT pg_catalog.current_setting('server_version') AS server,"
        " pg_catalog.pg_is_in_recovery() AS is_standby, tensile.is_udf_compiled() AS is_compiled,"
        " pg_catalog.getdatabaseencoding()::text AS encoding, current_user::text AS me,"
        " pg_catalog.pg_has_role('tensile_worker', current_user, 'MEMBER') AS can_be_read_as,"
        " (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user) AS is_superuser,"
        " (SELECT value FROM tensile.settings WHERE name = 'version') AS version,"
        " (SELECT version_num FROM tensile.migrations) AS migration, tensile.is_at_home() AS is_at_home,"
        " (SELECT count(*) FROM tensile.architectures) AS architectures"
    )
    assert facts is not None
    return [
        _server(
            f"PostgreSQL {facts['server']}, Python {sys.version.split()[0]}",
            is_standby=facts["is_standby"],
            is_compiled=facts["is_compiled"],
        ),
        _encoding(facts["encoding"]),
        _catalog(facts["version"], facts["migration"], is_at_home=facts["is_at_home"]),
        _architectures(facts["architectures"]),
        # Elsewhere a try is refused, and no number tells whose something is.
        *([_loopback(session)] if facts["is_at_home"] else []),
        *_namesakes(session),
        _role(facts["me"], can_be_read_as=facts["can_be_read_as"], is_superuser=facts["is_superuser"]),
        *_powers(session),
        *_workers(session, facts["version"]),
        _queue(session),
        *_stuck(session),
        *(_orphans(session) if facts["is_at_home"] else []),
    ]


def _row(check: str, status: str, found: str, hint: str | None = None) -> dict[str, Any]:
    return {"check": check, "status": status, "found": found, "hint": hint}


def _server(found: str, *, is_standby: bool, is_compiled: bool) -> dict[str, Any]:
    if is_standby:
        return _row(
            "server",
            "warning",
            f"{found}, a standby",
            "Jobs and predictions are asked for at the primary; models and progress can be looked at here.",
        )
    if not is_compiled:
        return _row(
            "server",
            "warning",
            f"{found}, for which these functions were not compiled",
            "Each session's first call takes longer. Run `tensile-db install` again.",
        )
    return _row("server", "ok", found)


def _catalog(version: str | None, migration: str | None, *, is_at_home: bool) -> dict[str, Any]:
    if migration is None:
        return _row(
            "catalog",
            "problem",
            "tensile.migrations is empty",
            "It was restored without its data: see `tensile-db install`, which says what to do.",
        )
    if not is_at_home:
        error = NotAtHome()
        return _row("catalog", "problem", error.message, error.hint)
    return _row("catalog", "ok", f"tensile_db {version}, migration {migration}")


def _encoding(encoding: str) -> dict[str, Any]:
    if encoding == "UTF8":
        return _row("encoding", "ok", encoding)
    return _row("encoding", "warning", encoding, "Labels and names beyond this encoding fail; UTF8 has all.")


def _architectures(count: int) -> dict[str, Any]:
    if count:
        return _row("architectures", "ok", f"{count} known")
    return _row(
        "architectures", "problem", "none known", "Start a worker, or run `tensile-db install` again."
    )


def _loopback(session: Session) -> dict[str, Any]:
    try:
        # A job that does not exist: only the way there is tried.
        session.value("SELECT tensile.job_status_now(tensile.sign(), 0)::text")
    except session.sql_error as error:
        return _row(
            "loopback",
            "problem",
            str(error),
            "tensile_train needs it; tensile_submit does not. See `tensile-db install --loopback`.",
        )
    return _row("loopback", "ok", "the server reaches itself")


def _namesakes(session: Session) -> list[dict[str, Any]]:
    """Return a row for each function of another's that a call may mean in the place of ours."""
    found = session.rows(
        "SELECT p.oid::regprocedure::text AS function, p.proname AS name, r.rolname AS owner"
        " FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"
        " JOIN pg_catalog.pg_roles r ON r.oid = p.proowner"
        " WHERE n.nspname = 'public' AND NOT r.rolsuper AND EXISTS (SELECT FROM pg_catalog.pg_proc o"
        " JOIN pg_catalog.pg_namespace t ON t.oid = o.pronamespace"
        " WHERE t.nspname = 'tensile' AND o.proname = p.proname) ORDER BY 1"
    )
    return [
        _row(
            "functions",
            "warning",
            f"{row['function']} of the role {row['owner']} may be what a call of {row['name']} means",
            "Look at it, and DROP FUNCTION it; REVOKE CREATE ON SCHEMA public FROM PUBLIC keeps others out.",
        )
        for row in found
    ]


def _role(me: str, *, can_be_read_as: bool, is_superuser: bool) -> dict[str, Any]:
    found = f"workers may not read tables as {me}"
    if is_superuser:
        hint = "No worker becomes a superuser: SET ROLE to an ordinary role before you train."
        return _row("role", "warning", f"{found}, a superuser", hint)
    if not can_be_read_as:
        return _row("role", "warning", found, "An administrator's tensile_grant_usage allows it.")
    return _row("role", "ok", f"workers may read tables as {me}")


def _powers(session: Session) -> list[dict[str, Any]]:
    """Return a row for each of the first roles that workers may become and should not."""
    found = powers_of_workers(session)
    if not found:
        return [_row("rights", "ok", "workers can become no superuser")]
    return [_power(session, role) for role in found]


def _power(session: Session, role: dict[str, Any]) -> dict[str, Any]:
    given, worker = (session.quote_name(role[name]) for name in ("given", "worker"))
    if given == worker:
        found, hint = f'a worker\'s login, "{role["worker"]}", {role["said"]}', f"Take that from {worker}."
    else:
        found = f'workers may become "{role["given"]}", which {role["said"]}'
        hint = f"Take that from it, or REVOKE {given} FROM {worker}."
    return _row("rights", "problem", found, hint)


def _workers(session: Session, version: str) -> list[dict[str, Any]]:
    workers = session.rows(
        "SELECT w.id, w.host, w.pid, w.device_name, w.memory_nbytes, w.version, w.state, r.rolsuper AS super,"
        " w.heartbeat_at > pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => w.lease_s)"
        " AS alive,"
        " o.jobs, o.in_line, o.shared_nbytes"
        " FROM tensile.workers w LEFT JOIN pg_catalog.pg_roles r ON r.rolname = w.login"
        " LEFT JOIN tensile.offers o ON o.worker_id = w.id"
        " WHERE w.state IN ('starting', 'ready') ORDER BY w.id"
    )
    if not any(worker["alive"] for worker in workers):
        return [_row("worker", "problem", "none is running", "Start one: tensile-db worker --dsn ...")]
    rows = []
    for worker in workers:
        found = (
            f"{worker['id']}: {worker['device_name']} on {worker['host']}, process {worker['pid']},"
            f" {format_nbytes(worker['memory_nbytes'] or 0)}, {worker['state']}"
        )
        if worker["jobs"]:
            found += (
                f", holds {worker['jobs']} jobs, {worker['in_line']} in line,"
                f" in {format_nbytes(worker['shared_nbytes'])}"
            )
        if not worker["alive"]:
            rows.append(_row("worker", "warning", f"{found}, silent", "Its jobs wait for another worker."))
        elif worker["version"] != version:
            hint = f"It runs tensile_db {worker['version']}: upgrade it, or run `tensile-db install`."
            rows.append(_row("worker", "problem", found, hint))
        elif worker["super"]:
            hint = (
                "Its login is a superuser, as which no worker starts any more: connect as another member of"
                " tensile_worker."
            )
            rows.append(_row("worker", "problem", found, hint))
        else:
            rows.append(_row("worker", "ok", found))
    return rows


def _queue(session: Session) -> dict[str, Any]:
    row = session.row(
        "SELECT count(*) FILTER (WHERE state IN ('queued', 'waiting')) AS waiting,"
        " count(*) FILTER (WHERE state = 'running') AS running,"
        " count(*) FILTER (WHERE state = 'paused') AS paused FROM tensile.jobs"
    )
    assert row is not None
    found = f"{row['running']} running, {row['waiting']} waiting, {row['paused']} paused that you may see"
    return _row("jobs", "ok", found)


def _stuck(session: Session) -> list[dict[str, Any]]:
    """Return a row for each of the first jobs that no worker can take, and why."""
    jobs = session.rows(
        "SELECT job_id, wait_reason FROM tensile.queue"
        " WHERE state = 'queued' AND wait_reason LIKE 'waits for %' ORDER BY place LIMIT 5"
    )
    hint = "tensile.offers has what the workers that are alive have for jobs."
    return [_row("job", "warning", f"{job['job_id']} {job['wait_reason']}", hint) for job in jobs]


def _orphans(session: Session) -> list[dict[str, Any]]:
    """Return a row for each of the first roles that are dropped, and whose models or jobs are left."""
    found = session.rows(
        "WITH owned AS (SELECT m.owned_by AS role, m.owner, 1 AS models, 0 AS jobs FROM tensile.models m"
        " UNION ALL SELECT j.submitted_by, j.owner, 0, 1 FROM tensile.jobs j WHERE j.finished_at IS NULL)"
        " SELECT o.role::bigint, pg_catalog.min(pg_catalog.replace(o.owner, ' (dropped)', '')) AS owner,"
        " pg_catalog.sum(o.models) AS models, pg_catalog.sum(o.jobs) AS jobs FROM owned o"
        " WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = o.role)"
        " GROUP BY o.role ORDER BY o.role LIMIT 5"
    )
    return [
        _row(
            "owner",
            "warning",
            f"the role {row['owner']}, number {row['role']}, was dropped; left of it:"
            f" {row['models']} versions of models, {row['jobs']} unfinished jobs",
            "tensile_cancel ends the jobs. A superuser gives the models to another role: UPDATE"
            " tensile.models SET owned_by = r.oid, owner = r.rolname FROM pg_roles r"
            " WHERE r.rolname = 'anna' AND owned_by ="
            f" {row['role']}; or deletes them: DELETE FROM tensile.models WHERE owned_by = {row['role']}.",
        )
        for row in found
    ]
