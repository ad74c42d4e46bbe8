-- As the owner: a right to delete would be one to lock the whole table against all sessions and workers.
CREATE OR REPLACE FUNCTION tensile.delete_models(
    signature text, owned_by oid, name text, version integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.signer($1);
    -- In the order of versions, as set_pinned locks them: two that drop, or one that pins, would deadlock else.
    WITH locked AS MATERIALIZED (
        SELECT m.id FROM tensile.models m
        WHERE m.owned_by = $2 AND m.name = $3 AND ($4 IS NULL OR m.version = $4)
          AND (m.owned_by = (SELECT r.oid FROM pg_roles r WHERE r.rolname = tensile.caller())
               OR pg_has_role(tensile.caller(), 'tensile_admin', 'USAGE'))
        ORDER BY m.version FOR UPDATE),
    dropped AS (
        DELETE FROM tensile.models m WHERE m.id IN (SELECT l.id FROM locked l) RETURNING m.id)
    SELECT count(*) FROM dropped
$$;

COMMENT ON FUNCTION tensile.delete_models(text, oid, text, integer) IS 'Deletes one''s own model, every version of it unless one is given; returns how many.';

CREATE OR REPLACE FUNCTION tensile.tensile_drop_model(model text, version integer DEFAULT NULL) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('drop_model', jsonb_build_object('model', model, 'version', version))::bigint
$$;

COMMENT ON FUNCTION tensile.tensile_drop_model(text, integer)
IS 'Deletes a model with its weights, all versions of it unless one is given; returns how many.';
