CREATE OR REPLACE FUNCTION tensile.tensile_drop_model(model text, version integer DEFAULT NULL) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('drop_model', jsonb_build_object('model', model, 'version', version))::bigint
$$;

COMMENT ON FUNCTION tensile.tensile_drop_model(text, integer)
IS 'Deletes a model with its weights, all versions of it unless one is given; returns how many.';
