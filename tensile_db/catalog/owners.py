"""Who owns what an install makes: whoever did could change what superusers then call.

A schema, a table or a function that is there already stays its owner's, also where an install replaces what
is in it.

Source: CVE-2022-2625 (an extension's script replaced objects of others).
"""

import psycopg

from tensile_db.errors import Forbidden

#: What is there of tensile_db and is not a superuser's: how ALTER calls it, and its owner.
_OTHERS = """
WITH found (kind, name, owner, place) AS (
    SELECT 'SCHEMA', n.nspname::text, n.nspowner, 1 FROM pg_catalog.pg_namespace n WHERE n.nspname = 'tensile'
    UNION ALL
    SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
           WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END,
           pg_catalog.format('%I.%I', n.nspname, c.relname), c.relowner, 2
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'tensile' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    UNION ALL
    SELECT CASE p.prokind WHEN 'p' THEN 'PROCEDURE' WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
           pg_catalog.format('%I.%I(%s)', n.nspname, p.proname,
                             pg_catalog.pg_get_function_identity_arguments(p.oid)), p.proowner, 3
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'tensile'
        -- The namesakes in public, as sql/unqualified.sql marks them.
        OR n.nspname = 'public'
            AND pg_catalog.starts_with(pg_catalog.obj_description(p.oid, 'pg_proc'), 'Calls tensile.tensile_')
    UNION ALL
    SELECT 'TYPE', pg_catalog.format('%I.%I', n.nspname, t.typname), t.typowner, 4
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    WHERE n.nspname = 'tensile' AND t.typrelid = 0 AND t.typelem = 0
)
SELECT f.kind, f.name, r.rolname FROM found f JOIN pg_catalog.pg_roles r ON r.oid = f.owner
WHERE NOT r.rolsuper ORDER BY f.place, f.name LIMIT 1
"""


def require_owners(connection: psycopg.Connection) -> None:
    """Refuse what is there of tensile_db, and is not a superuser's.  Raises Forbidden."""
    found = connection.execute(_OTHERS).fetchone()
    if found is not None:
        kind, name, owner = found
        raise Forbidden(
            f'the {kind.lower()} {name} belongs to the role "{owner}", which is no superuser and could change'
            " what others call",
            hint=f"If it was there before tensile_db: DROP {kind} {name}. If the role was a superuser and"
            " installed tensile_db: REASSIGN OWNED BY it TO one that is.",
        )
