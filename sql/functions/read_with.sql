CREATE OR REPLACE FUNCTION tensile.read_with(source oid) RETURNS SETOF oid
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH RECURSIVE read AS (
        SELECT $1 AS relid
      UNION
        SELECT others.relid FROM read r JOIN pg_class c ON c.oid = r.relid, LATERAL (
            SELECT i.inhrelid AS relid FROM pg_inherits i WHERE i.inhparent = c.oid
          UNION ALL
            SELECT d.refobjid FROM pg_rewrite w JOIN pg_depend d ON d.objid = w.oid
            WHERE c.relkind = 'v' AND w.ev_class = c.oid AND d.classid = 'pg_rewrite'::regclass
              AND d.refclassid = 'pg_class'::regclass) others)
    SELECT relid FROM read
$$;

COMMENT ON FUNCTION tensile.read_with(oid) IS 'A source and all that is read with it: partitions, children, and what views are of.';

CREATE OR REPLACE FUNCTION tensile.has_locked(pid integer, source oid) RETURNS boolean
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM pg_locks l
                   WHERE l.pid = $1 AND l.granted AND l.locktype = 'relation'
                     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                     AND l.relation IN (SELECT tensile.read_with($2))
                     AND l.mode = 'AccessExclusiveLock')
$$;

COMMENT ON FUNCTION tensile.has_locked(integer, oid) IS 'Whether a process has a source, or what is read with it, locked against reading.';
