-- Rows go from the worker's COPY to the client without passing through Python.
CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, source regclass, version integer DEFAULT NULL)
RETURNS TABLE (row_key text, prediction text, probability double precision)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    job constant bigint := tensile.call('predict', jsonb_build_object(
        'model', model, 'source', source::oid::bigint, 'version', version));
BEGIN
    RETURN QUERY SELECT p.row_key, p.prediction, p.probability FROM tensile.predictions p
        WHERE p.job_id = job ORDER BY p.ordinal;
    DELETE FROM tensile.predictions p WHERE p.job_id = job;
END
$$;

COMMENT ON FUNCTION tensile.tensile_predict(text, regclass, integer)
IS 'Predicts every row of a source with a model, its newest version unless one is given. row_key is the row''s primary key, or its place in the source.';
