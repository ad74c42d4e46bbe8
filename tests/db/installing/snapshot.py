"""All that an installation makes, as rows to compare."""

#: Every object of the two schemas, with what can be changed about it.
SNAPSHOT = """
SELECT 'function' AS kind, p.oid::regprocedure::text AS name, p.oid, p.proacl::text AS acl, p.prosrc AS body
FROM pg_proc p WHERE p.pronamespace IN ('tensile'::regnamespace, 'public'::regnamespace)
UNION ALL
SELECT 'relation', c.oid::regclass::text, c.oid, c.relacl::text, c.relkind::text
FROM pg_class c WHERE c.relnamespace = 'tensile'::regnamespace
UNION ALL
SELECT 'column', a.attrelid::regclass || '.' || a.attname, 0, a.attacl::text,
       concat(format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'tensile'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, 0, contype::text, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'tensile'::regnamespace
UNION ALL
SELECT 'policy', polrelid::regclass || '.' || polname, 0,
       polcmd::text, concat(pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid))
FROM pg_policy
UNION ALL
SELECT 'architecture', name, 0, kind, resolves_to FROM tensile.architectures
UNION ALL
SELECT 'setting', name, 0, value, updated_at::text FROM tensile.settings
ORDER BY 1, 2
"""
