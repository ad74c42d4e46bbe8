"""Refuses sources that ask for session_user, which is the worker's login while rows are read.

That login is a member of everybody who may submit, so that a policy like
`pg_has_role(session_user, owner, 'member')` would let everybody read everything.  What a function's body asks
for is not seen.

Runs in the worker, as the submitter.
"""

from typing import Any

from psycopg import Connection

from tensile_db.errors import Unsupported

# Parsed expressions tell SESSION_USER from CURRENT_USER and the like by a number, the same since PostgreSQL
# 10; in texts and names the brace is escaped.  What a view reads is read as its owner, whom no policy of the
# owner's own tables concerns, unless it is forced or the view is read as whoever asks (security_invoker).
_ASKS = """
    WITH RECURSIVE read AS (
        SELECT %(relation)s::pg_catalog.oid AS relid
      UNION
        SELECT d.refobjid FROM read AS r
        JOIN pg_catalog.pg_class AS c ON c.oid = r.relid AND c.relkind = 'v'
        JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = c.oid
        JOIN pg_catalog.pg_depend AS d ON d.classid = 'pg_catalog.pg_rewrite'::pg_catalog.regclass
            AND d.objid = w.oid AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass
    ), relations AS (
        SELECT c.*, pg_catalog.format('%%I.%%I', n.nspname, c.relname) AS name
        FROM read AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.relid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    ), views AS (
        SELECT * FROM relations WHERE relkind = 'v'
    )
    SELECT 'the view ' || v.name FROM views AS v JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = v.oid
    WHERE w.ev_action::pg_catalog.text LIKE %(session_user)s
  UNION ALL
    SELECT pg_catalog.format('the policy %%I of %%s', p.polname, t.name)
    FROM relations AS t JOIN pg_catalog.pg_policy AS p ON p.polrelid = t.oid
    WHERE t.relrowsecurity AND p.polcmd IN ('r', '*') AND p.polqual::pg_catalog.text LIKE %(session_user)s
        AND CASE WHEN t.oid = %(relation)s THEN pg_catalog.row_security_active(t.oid)
            ELSE t.relforcerowsecurity
                OR NOT EXISTS (SELECT FROM views AS v WHERE v.relowner = t.relowner)
                OR EXISTS (SELECT FROM views AS v
                           WHERE v.reloptions::pg_catalog.text LIKE '%%security_invoker=%%')
            END
    LIMIT 1"""

_SESSION_USER = "%{SQLVALUEFUNCTION :op 12 %"


def require_no_session_user(connection: Connection[Any], relation: int) -> None:
    """Raise Unsupported where a view, or a policy that concerns the submitter, asks for session_user."""
    asked = {"relation": relation, "session_user": _SESSION_USER}
    row = connection.execute(_ASKS, asked).fetchone()
    if row is not None:
        raise Unsupported(
            f"{row[0]} asks for session_user, which is the worker's login while rows are read",
            hint="Have its owner write current_user: that is the role that asked for the job.",
        )
