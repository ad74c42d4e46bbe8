-- As the owner: a right to delete would be one to lock the whole table against all sessions and workers.
CREATE OR REPLACE FUNCTION tensile.delete_predictions(signature text, job_id bigint) RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.signer($1);
    DELETE FROM tensile.predictions p USING tensile.jobs j
    WHERE p.job_id = $2 AND j.id = $2
      AND (j.submitted_by = (SELECT r.oid FROM pg_roles r WHERE r.rolname = tensile.caller())
           OR pg_has_role(tensile.caller(), 'tensile_admin', 'USAGE'))
$$;

COMMENT ON FUNCTION tensile.delete_predictions(text, bigint) IS 'Takes away the predictions of a job of one''s own.';

-- Committed at once, and so also where the caller's transaction may not write, or is rolled back: the worker's
-- rows are there whatever becomes of that.
CREATE OR REPLACE FUNCTION tensile.delete_predictions_visibly(signature text, job_id bigint) RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.as_caller($1, format('SELECT tensile.delete_predictions(tensile.sign(), %s)::text', $2))
$$;

COMMENT ON FUNCTION tensile.delete_predictions_visibly(text, bigint) IS 'tensile.delete_predictions, committed at once.';

-- Rows go from the worker's COPY to the client without passing through Python.
CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, source regclass, version integer, key text)
RETURNS TABLE (row_key text, prediction text, probability double precision)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
SET row_security = on
AS $$
DECLARE
    job constant bigint := tensile.call('predict', jsonb_build_object(
        'model', model, 'source', source::oid::bigint, 'version', version, 'key', key));
BEGIN
    RETURN QUERY SELECT p.row_key, p.prediction, p.probability FROM tensile.predictions p
        WHERE p.job_id = job ORDER BY p.ordinal;
    PERFORM tensile.delete_predictions_visibly(tensile.sign(), job);
END
$$;

COMMENT ON FUNCTION tensile.tensile_predict(text, regclass, integer, text)
IS 'Predicts every row of a source with a model, its default version where that is NULL. row_key is the value of the column that is named as the key.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, source regclass, version integer DEFAULT NULL)
RETURNS TABLE (row_key text, prediction text, probability double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT * FROM tensile.tensile_predict(model, source, version, NULL) $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, regclass, integer)
IS 'Predicts every row of a source with a model, its default version unless one is given. row_key is the row''s primary key, or its ctid; NULL where rows have neither of their own.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, source regclass, version integer DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (row_key text, probabilities jsonb)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
SET row_security = on
AS $$
DECLARE
    job constant bigint := tensile.call('predict', jsonb_build_object(
        'model', model, 'source', source::oid::bigint, 'version', version, 'key', key, 'all_classes', true));
    labels text[];
BEGIN
    SELECT ARRAY(SELECT jsonb_array_elements_text(m.classes)) INTO labels
    FROM tensile.jobs j JOIN tensile.models m ON m.id = j.model_id WHERE j.id = job;
    RETURN QUERY SELECT p.row_key,
            (SELECT jsonb_object_agg(label, value) FROM unnest(labels, p.probabilities) c (label, value))
        FROM tensile.predictions p WHERE p.job_id = job ORDER BY p.ordinal;
    PERFORM tensile.delete_predictions_visibly(tensile.sign(), job);
END
$$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, regclass, integer, text)
IS 'Returns the probability of each class for every row of a source, by a model, its default version unless one is given. row_key is the row''s primary key, or the value of the column that is named as the key.';
