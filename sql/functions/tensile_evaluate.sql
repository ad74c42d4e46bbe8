CREATE OR REPLACE FUNCTION tensile.tensile_evaluate(model text, source regclass, version integer DEFAULT NULL)
RETURNS TABLE (metric text, value double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000 ROWS 5
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('evaluate', jsonb_build_object(
        'model', model, 'source', source::oid::bigint, 'version', version)))
        AS r (metric text, value double precision)
$$;

COMMENT ON FUNCTION tensile.tensile_evaluate(text, regclass, integer)
IS 'Measures a model, its default version unless one is given, on rows that have the target.';
