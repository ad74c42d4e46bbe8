"""Which roles no worker is to become: superusers, and those that can make themselves one.

Runs inside PostgreSQL, as the caller.  A worker's login becomes the roles that were given to workers, and, by
SET ROLE as well, whatever these are members of, whether they inherit its rights or not.
"""

from typing import Any

from tensile_db.udf.session import Session

#: The power's kind -> what to say of a role that has it.
_POWERS = {
    "superuser": "a superuser",
    # By a program, by the server's own settings, or by the passwords that lie in its files.
    "server": "allowed to use the server's files and programs",
    "roles": "allowed to give pg_execute_server_program to itself (CREATEROLE, before PostgreSQL 16)",
}

# The role first, for a superuser is said to be a member of all others.
_FOUND = """
SELECT p.oid = {role} AS itself, p.rolname::text AS name, p.power
FROM (SELECT r.oid, r.rolname, CASE
          WHEN r.rolsuper THEN 'superuser'
          WHEN r.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
              THEN 'server'
          WHEN r.rolcreaterole AND pg_catalog.current_setting('server_version_num')::integer < 160000
              THEN 'roles' END AS power
      FROM pg_catalog.pg_roles r) p
WHERE p.power IS NOT NULL AND pg_catalog.pg_has_role({role}, p.oid, 'MEMBER')
ORDER BY p.oid <> {role}, p.power <> 'superuser', p.rolname LIMIT 1
"""

# All that workers are members of but by being workers; and what their logins can do themselves.
_OF_WORKERS = f"""
SELECT g.rolname::text AS given, w.rolname::text AS worker, f.itself, f.name, f.power
FROM (SELECT member, roleid FROM pg_catalog.pg_auth_members
      UNION ALL SELECT oid, oid FROM pg_catalog.pg_roles WHERE rolcreaterole) m
JOIN pg_catalog.pg_roles w ON w.oid = m.member
JOIN pg_catalog.pg_roles g ON g.oid = m.roleid
CROSS JOIN LATERAL ({_FOUND.format(role="g.oid")}) f
WHERE NOT w.rolsuper AND pg_catalog.pg_has_role(w.oid, 'tensile_worker', 'MEMBER')
  AND CASE WHEN g.oid = w.oid THEN f.itself
      ELSE g.rolsuper OR NOT pg_catalog.pg_has_role(g.oid, 'tensile_worker', 'MEMBER') END
ORDER BY 1, 2 LIMIT 5
"""


def power_of(session: Session, role: int) -> str | None:
    """Return what makes a role none that a worker may become, to be said after its name; None: nothing does.

    role: its OID.
    """
    found = session.row(_FOUND, role=("oid", role))
    return None if found is None else _said(found)


def powers_of_workers(session: Session) -> list[dict[str, Any]]:
    """Return the first five roles given to workers that none may become: given, worker, and said of it.

    Where a worker's login itself is one, that is both.
    """
    return [row | {"said": _said(row)} for row in session.rows(_OF_WORKERS)]


def _said(found: dict[str, Any]) -> str:
    power = _POWERS[found["power"]]
    return f"is {power}" if found["itself"] else f'is a member of "{found["name"]}", which is {power}'
