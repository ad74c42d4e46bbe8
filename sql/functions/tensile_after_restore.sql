-- By names, which another cluster may have under other numbers.  What is of nobody there would otherwise be of
-- whoever has, or will get, its former owner's number.
CREATE OR REPLACE FUNCTION tensile.settle_owners() RETURNS TABLE (what text, count bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    me constant oid := (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user);
    quotas tensile.quotas[];
BEGIN
    CREATE TEMPORARY TABLE tensile_settled ON COMMIT DROP AS
    WITH families AS (
        SELECT m.owned_by, m.owner, m.name, r.oid AS found, min(m.id) AS oldest
        FROM tensile.models m LEFT JOIN pg_roles r ON r.rolname = m.owner
        GROUP BY m.owned_by, m.owner, m.name, r.oid),
    ranked AS (
        SELECT f.*, row_number() OVER (PARTITION BY coalesce(f.found, me), f.name
                                       ORDER BY f.found IS NULL, f.oldest) > 1 AS is_second
        FROM families f)
    SELECT m.id, m.version, coalesce(r.found, me) AS owned_by, r.found IS NULL AS is_left, r.is_second,
           m.pinned AND r.found IS NOT NULL AS pinned,
           m.name || CASE WHEN r.is_second THEN format(' (of %s, %s)', m.owner, m.owned_by) ELSE '' END AS name
    FROM tensile.models m JOIN ranked r ON (r.owned_by, r.owner, r.name) = (m.owned_by, m.owner, m.name);
    -- Keys are checked row by row, and the new number of one owner may be the former one of another.
    UPDATE tensile.models m SET version = -m.id, pinned = false;
    UPDATE tensile.models m
    SET version = s.version, pinned = s.pinned, owned_by = s.owned_by, owner = r.rolname, name = s.name
    FROM pg_temp.tensile_settled s JOIN pg_roles r ON r.oid = s.owned_by WHERE m.id = s.id;
    RETURN QUERY SELECT 'models of roles that are not here: they are yours now', count(*) FROM pg_temp.tensile_settled s WHERE s.is_left;
    RETURN QUERY SELECT 'models with the name of another of their new owner''s: their former owner''s is added to it',
        count(*) FROM pg_temp.tensile_settled s WHERE s.is_second;
    DROP TABLE pg_temp.tensile_settled;

    RETURN QUERY WITH settled AS (
        UPDATE tensile.jobs j SET submitted_by = n.oid, owner = n.rolname
        FROM tensile.jobs o LEFT JOIN pg_roles r ON r.rolname = o.owner JOIN pg_roles n ON n.oid = coalesce(r.oid, me)
        WHERE j.id = o.id RETURNING r.oid IS NULL AS is_left)
    SELECT 'jobs of roles that are not here: they are yours now', count(*) FROM settled s WHERE s.is_left;

    quotas := ARRAY(SELECT q FROM tensile.quotas q WHERE q.role_oid <> 0);
    DELETE FROM tensile.quotas q WHERE q.role_oid <> 0;
    INSERT INTO tensile.quotas
    SELECT DISTINCT ON (r.oid) (jsonb_populate_record(q, jsonb_build_object('role_oid', r.oid))).*
    FROM unnest(quotas) q JOIN pg_roles r ON r.rolname = q.role ORDER BY r.oid, q.updated_at DESC;
    RETURN QUERY SELECT 'quotas of roles that are not here, deleted', count(*) FROM unnest(quotas) q
        WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = q.role);
END
$$;

COMMENT ON FUNCTION tensile.settle_owners() IS 'Finds the owners of models, jobs and quotas by their names; returns what became of how many. For tensile_after_restore.';

CREATE OR REPLACE FUNCTION tensile.tensile_after_restore(numbers_kept boolean DEFAULT NULL)
RETURNS TABLE (what text, count bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 6
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    here constant tensile.homes := tensile.this_home();
    kept boolean := numbers_kept;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('role "%s" may not find the owners of what was restored', current_user),
            HINT = 'Connect as a superuser.';
    END IF;
    LOCK TABLE tensile.homes IN SHARE ROW EXCLUSIVE MODE;
    IF tensile.is_home() THEN
        RAISE NOTICE 'nothing to do: the numbers in the catalog are those of this database';
        RETURN;
    END IF;
    -- Clusters that one script has set up may number their tables alike, and not their roles.
    IF kept IS NULL AND EXISTS (SELECT FROM tensile.homes h WHERE h.jobs_oid = here.jobs_oid
                               AND h.system_identifier <> here.system_identifier) THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'the catalog comes from another cluster, in which its tables had the same numbers',
            HINT = 'After pg_upgrade, which keeps all numbers: SELECT * FROM tensile_after_restore(true); else:'
                ' SELECT * FROM tensile_after_restore(false).';
    END IF;
    IF NOT coalesce(kept, false) THEN
        UPDATE tensile.workers w SET state = 'gone' WHERE w.state <> 'gone';
        DELETE FROM tensile.serving_requests;
        DELETE FROM tensile.quota_locks;
        -- Their tables have other numbers here.
        RETURN QUERY WITH deleted AS (DELETE FROM tensile.jobs j WHERE j.finished_at IS NULL RETURNING 1)
            SELECT 'jobs that had not ended, deleted', count(*) FROM deleted;
        -- Databases of one cluster have the same roles.
        IF NOT EXISTS (SELECT FROM tensile.homes h WHERE h.system_identifier = here.system_identifier
                       AND h.jobs_oid <> here.jobs_oid) THEN
            RETURN QUERY SELECT * FROM tensile.settle_owners();
        END IF;
    END IF;
    DELETE FROM tensile.homes;
    INSERT INTO tensile.homes SELECT here.*;
END
$$;

COMMENT ON FUNCTION tensile.tensile_after_restore(boolean)
IS 'Finds by their names the owners of a catalog that was restored from a dump, and deletes what cannot go on; returns what became of how many rows. True after pg_upgrade, which keeps all numbers. For superusers.';
