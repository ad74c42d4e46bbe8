-- As the owner: a right to delete would be one to lock the whole table against all sessions and workers.
--
-- A trial goes with its search alone, which looks at all of its trials until it ends, and ends before they do.
-- Jobs that other transactions have locked are left, so that of two calls neither waits for the other.
CREATE OR REPLACE FUNCTION tensile.delete_jobs(signature text, ended_before timestamptz, role oid) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.signer($1);
    WITH caller AS MATERIALIZED (
        SELECT r.oid AS role, pg_has_role(r.oid, 'tensile_admin', 'USAGE') AS is_admin,
               -- Jobs are the record of the device time that was used.
               (tensile.quota_of(r.oid)).max_device_seconds IS NOT NULL AS is_metered
        FROM pg_roles r WHERE r.rolname = tensile.caller()),
    -- Whoever waits for a job that has just ended is still to read what came of it.
    over AS MATERIALIZED (
        SELECT j.id, j.submitted_by FROM tensile.jobs j
        WHERE j.state IN ('succeeded', 'failed', 'cancelled')
          AND j.finished_at < $2 AND j.finished_at < now() - interval '1 minute'),
    chosen AS MATERIALIZED (
        SELECT j.id FROM tensile.jobs j JOIN over o ON o.id = j.id CROSS JOIN caller c
        WHERE j.search_id IS NULL AND ($3 IS NULL OR o.submitted_by = $3)
          AND (c.is_admin OR o.submitted_by = c.role AND NOT c.is_metered)
          AND NOT EXISTS (SELECT FROM tensile.jobs t WHERE t.search_id = j.id
                          AND NOT EXISTS (SELECT FROM over o WHERE o.id = t.id))
        FOR UPDATE OF j SKIP LOCKED),
    deleted AS (
        DELETE FROM tensile.jobs j
        USING (SELECT c.id FROM chosen c
               UNION ALL SELECT t.id FROM chosen c JOIN tensile.jobs t ON t.search_id = c.id) d
        WHERE j.id = d.id
        RETURNING j.id)
    SELECT count(*) FROM deleted
$$;

COMMENT ON FUNCTION tensile.delete_jobs(text, timestamptz, oid) IS 'Deletes jobs that ended before an instant, one''s own, or for members of tensile_admin those of a role, or of all where it is NULL; returns how many.';

CREATE OR REPLACE FUNCTION tensile.tensile_delete_jobs(ended_before timestamptz, role name DEFAULT NULL) RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('delete_jobs', jsonb_build_object('ended_before', ended_before, 'role', role))::bigint
$$;

COMMENT ON FUNCTION tensile.tensile_delete_jobs(timestamptz, name)
IS 'Deletes jobs that ended before an instant with all that they left but models, and returns how many: one''s own, or for members of tensile_admin those of a role, or of all where none is given.';
