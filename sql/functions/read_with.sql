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
