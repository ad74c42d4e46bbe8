-- As the owner: a right to update would be one to lock the whole table against all sessions and workers.
CREATE OR REPLACE FUNCTION tensile.set_pinned(
    signature text, owned_by oid, name text, version integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    caller constant text := tensile.signer($1);
    known integer[];
    changed boolean;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = $2 AND r.rolname = caller)
       AND NOT pg_has_role(caller, 'tensile_admin', 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('the model "%s" is another role''s', $3);
    END IF;
    -- Of two that pin different versions at once the second one's is pinned.
    PERFORM pg_advisory_xact_lock(hashtextextended(format('tensile pin %s %s', $2, $3), 0));
    -- In the order in which delete_models locks them.
    known := ARRAY(SELECT m.version FROM tensile.models m
                   WHERE m.owned_by = $2 AND m.name = $3 AND (m.pinned OR m.version = $4)
                   ORDER BY m.version FOR NO KEY UPDATE);
    IF $4 IS NOT NULL AND $4 <> ALL (known) THEN
        RAISE undefined_object USING MESSAGE = format('model "%s" has no version %s', $3, $4),
            HINT = 'It has just been dropped, or replaced by a search.';
    END IF;
    UPDATE tensile.models m SET pinned = false
    WHERE m.owned_by = $2 AND m.name = $3 AND m.pinned AND m.version IS DISTINCT FROM $4;
    changed := FOUND;
    UPDATE tensile.models m SET pinned = true
    WHERE m.owned_by = $2 AND m.name = $3 AND NOT m.pinned AND m.version = $4;
    RETURN changed OR FOUND;
EXCEPTION WHEN unique_violation THEN
    -- A snapshot from before another version was pinned does not show that it is.
    RAISE serialization_failure USING
        MESSAGE = format('another version of the model "%s" has been pinned meanwhile', $3),
        HINT = 'Try again in another transaction.';
END
$$;

COMMENT ON FUNCTION tensile.set_pinned(text, oid, text, integer) IS 'Pins a version of one''s own model, or none where it is NULL. False if it was so already.';

CREATE OR REPLACE FUNCTION tensile.tensile_pin_model(model text, version integer) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('pin_model', jsonb_build_object('model', model, 'version', version))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_pin_model(text, integer)
IS 'Makes a version of a model its default, whatever versions are trained later. False if it was pinned already.';

CREATE OR REPLACE FUNCTION tensile.tensile_unpin_model(model text) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('unpin_model', jsonb_build_object('model', model))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_unpin_model(text)
IS 'Makes the newest version of a model its default again. False if none was pinned.';
