"""Refuses to read where row-level security or a view asks for session_user: that is the worker's login there.

That login is a member of everybody who may submit, so that a policy like `pg_has_role(session_user, owner,
'member')` would let everybody read everything.  Whoever asks may reach a table in ways that nobody sees,
through functions of their own, so every table that they may read counts.  What a function in a policy or
view asks for is not seen, nor `current_setting('session_authorization')`.

Runs in the worker, as the submitter.
"""

from typing import Any

from psycopg import Connection

from tensile_db.errors import Unsupported

# `read`: what the source is seen to read, and as whom; what a view reads is read as its owner, or, with
# security_invoker, as who reads the view; what a policy reads, as who reads its table.
_ASKS = r"""
    WITH RECURSIVE own AS (
        SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
    ), read (relid, reader) AS (
        SELECT %(relation)s::pg_catalog.oid, own.oid FROM own
      UNION
        SELECT d.refobjid, o.reader FROM read AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.relid
        CROSS JOIN LATERAL (
            SELECT 'pg_catalog.pg_rewrite'::pg_catalog.regclass AS class, w.oid AS object,
                CASE WHEN c.reloptions::pg_catalog.text ~ 'security_invoker=(on|true|yes|1)\M' THEN r.reader
                    ELSE c.relowner END AS reader
            FROM pg_catalog.pg_rewrite AS w WHERE c.relkind = 'v' AND w.ev_class = c.oid
          UNION ALL
            SELECT 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid, r.reader
            FROM pg_catalog.pg_policy AS p
            WHERE c.relrowsecurity AND p.polrelid = c.oid AND p.polcmd IN ('r', '*')) AS o
        JOIN pg_catalog.pg_depend AS d ON d.classid = o.class AND d.objid = o.object
            AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    ), readable AS (
        SELECT relid, reader FROM read
      UNION
        SELECT p.polrelid, own.oid FROM pg_catalog.pg_policy AS p, own
        WHERE pg_catalog.has_any_column_privilege(p.polrelid, 'SELECT')
    ), asking AS (
        SELECT v.oid AS relation, 'the view' AS what
        FROM read AS r JOIN pg_catalog.pg_class AS v ON v.oid = r.relid AND v.relkind = 'v'
        JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = v.oid
        WHERE w.ev_action::pg_catalog.text ~ %(session_user)s
      UNION ALL
        SELECT t.oid, pg_catalog.format('the policy %%I of', p.polname)
        FROM readable AS r JOIN pg_catalog.pg_roles AS reader ON reader.oid = r.reader
        JOIN pg_catalog.pg_class AS t ON t.oid = r.relid
        JOIN pg_catalog.pg_policy AS p ON p.polrelid = t.oid
        WHERE t.relrowsecurity AND p.polcmd IN ('r', '*') AND p.polqual::pg_catalog.text ~ %(session_user)s
            AND NOT reader.rolsuper AND NOT reader.rolbypassrls
            AND (t.relforcerowsecurity OR NOT pg_catalog.pg_has_role(reader.oid, t.relowner, 'USAGE'))
            AND EXISTS (SELECT FROM pg_catalog.unnest(p.polroles) AS role
                        WHERE role = 0 OR pg_catalog.pg_has_role(reader.oid, role, 'USAGE'))
    )
    SELECT pg_catalog.format('%%s %%I.%%I', a.what, n.nspname, c.relname)
    FROM asking AS a JOIN pg_catalog.pg_class AS c ON c.oid = a.relation
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace ORDER BY 1 LIMIT 1"""

#: In a parsed expression, since PostgreSQL 10: SESSION_USER, and the functions session_user() and
#: system_user().  In texts and names the brace is escaped.
_SESSION_USER = r"\{(SQLVALUEFUNCTION :op 12|FUNCEXPR :funcid (746|6311)) "


def require_no_session_user(connection: Connection[Any], relation: int) -> None:
    """Raise Unsupported where a view that is read, or a policy for the submitter, asks for session_user."""
    asked = {"relation": relation, "session_user": _SESSION_USER}
    row = connection.execute(_ASKS, asked).fetchone()
    if row is not None:
        raise Unsupported(
            f"{row[0]} asks for session_user, which is the worker's login while rows are read",
            hint="Have its owner write current_user: that is the role that asked for the job.",
        )
