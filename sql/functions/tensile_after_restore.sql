-- By names, which another cluster may have under other numbers.  What is of nobody there would otherwise be of
-- whoever has, or will get, its former owner's number.
CREATE OR REPLACE FUNCTION tensile.find_owners() RETURNS TABLE (what text, count bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- Of tables that are not there to be dropped.
SET client_min_messages = warning
AS $$
DECLARE
    me constant oid := (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user);
    quotas tensile.quotas[];
    renamed record;
    free text;
    tries bigint;
BEGIN
    DROP TABLE IF EXISTS pg_temp.tensile_owners, pg_temp.tensile_families;
    -- Of two numbers with one name, the latter is the role's that was made when the former's had been dropped.
    CREATE TEMPORARY TABLE tensile_owners ON COMMIT DROP AS
    WITH owned (number, name, at) AS (
        SELECT m.owned_by, m.owner, m.created_at FROM tensile.models m
        UNION ALL SELECT j.submitted_by, j.owner, j.created_at FROM tensile.jobs j
        -- Administrators write these; a quota's name gets nobody more than a quota.
        UNION ALL SELECT q.role_oid, q.role, '-infinity' FROM tensile.quotas q WHERE q.role IS NOT NULL),
    named AS (SELECT DISTINCT ON (o.number) o.* FROM owned o ORDER BY o.number, o.at DESC),
    ranked AS (SELECT n.*, row_number() OVER (PARTITION BY n.name ORDER BY n.at DESC, n.number DESC) AS place FROM named n)
    SELECT n.number, n.name, r.oid IS NULL AS is_orphan, coalesce(r.oid, me) AS role, coalesce(r.rolname, current_user) AS rolname
    FROM ranked n LEFT JOIN pg_roles r ON r.rolname = n.name AND n.place = 1 AND n.name NOT LIKE '% (dropped)';

    -- All versions of a model stay together, and apart from those of other owners'.
    CREATE TEMPORARY TABLE tensile_families ON COMMIT DROP AS
    SELECT row_number() OVER () AS id, m.owned_by AS number, o.name AS owner, m.name AS former_name, m.name, o.role, o.rolname,
           o.is_orphan, row_number() OVER (PARTITION BY o.role, m.name ORDER BY o.is_orphan, min(m.id)) > 1 AS is_renamed
    FROM tensile.models m JOIN pg_temp.tensile_owners o ON o.number = m.owned_by
    GROUP BY m.owned_by, m.name, o.name, o.role, o.rolname, o.is_orphan;
    FOR renamed IN SELECT f.* FROM pg_temp.tensile_families f WHERE f.is_renamed ORDER BY f.id LOOP
        free := format('%s (of %s, %s)', renamed.name, renamed.owner, renamed.number);
        tries := 1;
        -- Names are their owners' to choose.
        WHILE EXISTS (SELECT FROM pg_temp.tensile_families f WHERE f.role = renamed.role AND f.name = free) LOOP
            tries := tries + 1;
            free := format('%s (of %s, %s, %s)', renamed.name, renamed.owner, renamed.number, tries);
        END LOOP;
        UPDATE pg_temp.tensile_families f SET name = free WHERE f.id = renamed.id;
    END LOOP;
    -- Keys are checked row by row, and the new number of one owner may be the former one of another: all leave their
    -- places before any takes a new one.
    UPDATE tensile.models m SET owned_by = 0, name = f.id::text
    FROM pg_temp.tensile_families f WHERE (f.number, f.former_name) = (m.owned_by, m.name);
    UPDATE tensile.models m SET owned_by = f.role, owner = f.rolname, name = f.name, pinned = m.pinned AND NOT f.is_orphan
    FROM pg_temp.tensile_families f WHERE m.owned_by = 0 AND m.name = f.id::text;
    RETURN QUERY SELECT c.what, (SELECT pg_catalog.count(*) FROM tensile.models m JOIN pg_temp.tensile_families f
                                 ON (f.role, f.name) = (m.owned_by, m.name) WHERE f.is_orphan AND c.of_orphans
                                 OR f.is_renamed AND NOT c.of_orphans)
        FROM (VALUES ('versions of models now yours', true), ('versions of models renamed', false)) c (what, of_orphans);

    RETURN QUERY WITH found AS (
        UPDATE tensile.jobs j SET submitted_by = o.role, owner = o.rolname
        FROM pg_temp.tensile_owners o WHERE o.number = j.submitted_by RETURNING o.is_orphan)
    SELECT 'ended jobs now yours', pg_catalog.count(*) FROM found f WHERE f.is_orphan;

    quotas := ARRAY(SELECT q FROM tensile.quotas q WHERE q.role_oid <> 0);
    DELETE FROM tensile.quotas q WHERE q.role_oid <> 0;
    INSERT INTO tensile.quotas
    SELECT (jsonb_populate_record(q, jsonb_build_object('role_oid', o.role, 'role', o.rolname))).*
    FROM unnest(quotas) q JOIN pg_temp.tensile_owners o ON o.number = q.role_oid WHERE NOT o.is_orphan;
    RETURN QUERY SELECT 'quotas deleted', cardinality(quotas)
                        - (SELECT pg_catalog.count(*) FROM tensile.quotas q WHERE q.role_oid <> 0);
END
$$;

COMMENT ON FUNCTION tensile.find_owners() IS 'Finds the owners of models, jobs and quotas by their names; returns what became of how many. For tensile_after_restore.';

CREATE OR REPLACE FUNCTION tensile.tensile_after_restore(numbers_kept boolean DEFAULT NULL)
RETURNS TABLE (what text, count bigint)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 5
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here constant tensile.homes := tensile.current_home();
    by_names constant text := 'SELECT * FROM tensile_after_restore(numbers_kept => false)';
    by_numbers constant text := 'SELECT * FROM tensile_after_restore(numbers_kept => true)';
    is_of_this_cluster boolean;
    is_upgraded boolean;
    has_other_names boolean;
BEGIN
    IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = current_user) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('role "%s" may not find the owners of what was restored', current_user),
            HINT = 'Connect as a superuser.';
    END IF;
    LOCK TABLE tensile.homes IN SHARE ROW EXCLUSIVE MODE;
    IF tensile.is_at_home() AND numbers_kept IS DISTINCT FROM false THEN
        RAISE NOTICE 'nothing to do: the numbers in the catalog are those of this database'
            USING HINT = 'If they are not, since only some tables were restored: ' || by_names || '.';
        RETURN;
    END IF;
    -- A worker that came with the dump may have lived a moment before it, and has no session here.
    IF EXISTS (SELECT FROM tensile.workers w WHERE w.state IN ('starting', 'ready')
               AND w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_s)
               AND (tensile.is_at_home() OR EXISTS (SELECT FROM pg_stat_activity a
                                                    WHERE a.datname = current_database() AND a.usename = w.login))) THEN
        RAISE object_in_use USING
            MESSAGE = 'a worker is running, whose jobs would be deleted',
            HINT = 'Stop all workers first.';
    END IF;
    -- Where there is no row, or one of another cluster alone, nothing speaks for the numbers.
    SELECT coalesce(bool_and(h.system_identifier = here.system_identifier), false),
           coalesce(bool_and(h.jobs_oid = here.jobs_oid), false)
    INTO is_of_this_cluster, is_upgraded FROM tensile.homes h
    WHERE (h.system_identifier, h.jobs_oid) <> (here.system_identifier, here.jobs_oid);
    IF numbers_kept AND NOT is_of_this_cluster AND NOT is_upgraded THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'the catalog came by a dump from another cluster, whose roles have other numbers',
            HINT = 'Have owners found by their names: ' || by_names || '.';
    END IF;
    IF numbers_kept IS NULL AND (is_of_this_cluster OR is_upgraded) THEN
        SELECT EXISTS (
            SELECT FROM (SELECT m.owned_by AS number, m.owner AS name FROM tensile.models m
                         UNION SELECT j.submitted_by, j.owner FROM tensile.jobs j
                         UNION SELECT q.role_oid, q.role FROM tensile.quotas q) o
            LEFT JOIN pg_roles r ON r.oid = o.number
            WHERE CASE WHEN r.oid IS NOT NULL THEN r.rolname <> o.name
                       ELSE EXISTS (SELECT FROM pg_roles p WHERE p.rolname = o.name) END)
        INTO has_other_names;
        IF is_upgraded THEN
            -- Two clusters that one script has set up number their tables alike, and not their roles.
            RAISE invalid_parameter_value USING
                MESSAGE = 'the catalog comes from another cluster, in which its tables had the same numbers',
                HINT = 'After pg_upgrade, which keeps all numbers: ' || by_numbers || '; else: ' || by_names || '.';
        ELSIF has_other_names THEN
            -- Clusters of which one began as a copy of the other's files have one identifier.
            RAISE invalid_parameter_value USING
                MESSAGE = 'the catalog''s owners have other names by now, or it comes from a cluster that is no more the same',
                HINT = 'If roles were renamed since the dump: ' || by_numbers || '; else: ' || by_names || '.';
        END IF;
        numbers_kept := true;
    END IF;
    IF NOT (coalesce(numbers_kept, false) AND is_upgraded) THEN
        -- Their tables have other numbers here, and nobody waits for them.
        UPDATE tensile.workers w SET state = 'gone' WHERE w.state <> 'gone';
        DELETE FROM tensile.serving_requests;
        DELETE FROM tensile.quota_locks;
        RETURN QUERY WITH deleted AS (
            DELETE FROM tensile.jobs j WHERE j.finished_at IS NULL
            OR j.search_id IN (SELECT s.id FROM tensile.jobs s WHERE s.finished_at IS NULL) RETURNING 1)
        SELECT 'unfinished jobs deleted', pg_catalog.count(*) FROM deleted;
    END IF;
    IF NOT coalesce(numbers_kept, false) THEN
        RETURN QUERY SELECT * FROM tensile.find_owners();
    END IF;
    DELETE FROM tensile.homes;
    INSERT INTO tensile.homes SELECT here.*;
END
$$;

COMMENT ON FUNCTION tensile.tensile_after_restore(boolean)
IS 'Finds by their names the owners of a catalog that was restored from a dump, and deletes what cannot go on; returns what became of how many rows. True after pg_upgrade, which keeps all numbers. For superusers.';
