"""Who owns what an install makes: whoever did could change what superusers then call.

A schema, a table or a function that is there already stays its owner's, also where an install replaces what
is in it; and so does what was put on a table: a trigger, or a foreign key, whose table's triggers run when a
row of ours goes.

Source: CVE-2022-2625 (an extension's script replaced objects of others).
"""

import psycopg

from tensile_db.errors import Forbidden

#: One thing there of tensile_db that is no superuser's, if there is any: what it is, what gets rid of it, and
#: whose it is (object, undo, rolname).
WHOSE_IT_IS = """
WITH others AS MATERIALIZED (
    SELECT r.oid, r.rolname FROM pg_catalog.pg_roles r WHERE NOT r.rolsuper
),
ours AS MATERIALIZED (
    SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, c.relkind, c.relowner
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'tensile' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
),
theirs AS MATERIALIZED (
    SELECT p.oid, n.nspname, p.proname, p.prokind, p.proowner,
           pg_catalog.oidvectortypes(p.proargtypes) AS types, pg_catalog.format('%I.%I(%s)', n.nspname,
               p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)) AS name
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname IN ('tensile', 'public') AND p.proowner IN (SELECT r.oid FROM others r)
),
found (place, object, undo, owner) AS (
    SELECT 1, 'schema tensile', 'DROP SCHEMA tensile', n.nspowner FROM pg_catalog.pg_namespace n
    WHERE n.nspname = 'tensile'
    UNION ALL
    SELECT 2, 'relation ' || o.name, pg_catalog.format('DROP %s %s', CASE o.relkind WHEN 'v' THEN 'VIEW'
           WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE' WHEN 'f' THEN 'FOREIGN TABLE'
           ELSE 'TABLE' END, o.name), o.relowner FROM ours o
    UNION ALL
    SELECT 3, 'function ' || f.name, pg_catalog.format('DROP %s %s', CASE f.prokind WHEN 'p' THEN 'PROCEDURE'
           WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END, f.name), f.proowner FROM theirs f
    -- In public those in the place of our namesakes (sql/unqualified.sql).
    WHERE f.nspname = 'tensile' OR EXISTS (
        SELECT FROM pg_catalog.pg_proc o JOIN pg_catalog.pg_namespace n ON n.oid = o.pronamespace
        WHERE n.nspname = 'tensile' AND o.proname = f.proname
        AND f.types IN (pg_catalog.oidvectortypes(o.proargtypes),
                        pg_catalog.replace(pg_catalog.oidvectortypes(o.proargtypes), 'regclass', 'text')))
    UNION ALL
    SELECT 4, 'type tensile.' || pg_catalog.quote_ident(t.typname),
           'DROP TYPE tensile.' || pg_catalog.quote_ident(t.typname), t.typowner
    FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
    LEFT JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
    WHERE n.nspname = 'tensile' AND t.typelem = 0 AND (c.oid IS NULL OR c.relkind = 'c')
    UNION ALL
    SELECT 5, pg_catalog.format('function of the trigger %I on %s', t.tgname, o.name),
           pg_catalog.format('DROP TRIGGER %I ON %s', t.tgname, o.name), p.proowner
    FROM ours o JOIN pg_catalog.pg_trigger t ON t.tgrelid = o.oid
    JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
    UNION ALL
    SELECT 6, pg_catalog.format('table %I.%I, which refers to %s,', n.nspname, c.relname, o.name),
           pg_catalog.format('ALTER TABLE %I.%I DROP CONSTRAINT %I', n.nspname, c.relname, k.conname),
           c.relowner
    FROM ours o JOIN pg_catalog.pg_constraint k ON k.confrelid = o.oid
    JOIN pg_catalog.pg_class c ON c.oid = k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname <> 'tensile'
)
SELECT f.object, f.undo, r.rolname FROM found f JOIN others r ON r.oid = f.owner
ORDER BY f.place, f.object LIMIT 1
"""


def require_owners(connection: psycopg.Connection) -> None:
    """Refuse what is there of tensile_db, and is no superuser's.  Raises Forbidden."""
    found = connection.execute(WHOSE_IT_IS).fetchone()
    if found is not None:
        thing, undo, owner = found
        raise Forbidden(
            f'the {thing} belongs to the role "{owner}", which is no superuser and could change what others'
            " call",
            hint=f"If tensile_db has nothing to do with it: {undo}. If the role was a superuser and installed"
            " tensile_db: REASSIGN OWNED BY it TO one that is.",
        )
