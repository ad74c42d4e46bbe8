-- Owners and tables are kept by number.  What a dump brings into another database, or another cluster, has the
-- numbers of the former one, which are nobody's there, or somebody else's.
CREATE OR REPLACE FUNCTION tensile.this_home() RETURNS tensile.homes
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT ROW(c.system_identifier, 'tensile.jobs'::regclass::oid, now())::tensile.homes FROM pg_control_system() c $$;

COMMENT ON FUNCTION tensile.this_home() IS 'The row of tensile.homes that stands for this database.';

-- A copy by CREATE DATABASE ... TEMPLATE, a standby and a backup of the cluster's files keep all numbers.
CREATE OR REPLACE FUNCTION tensile.is_home() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT NOT EXISTS (SELECT FROM tensile.homes h, tensile.this_home() t
                       WHERE (h.system_identifier, h.jobs_oid) <> (t.system_identifier, t.jobs_oid))
$$;

COMMENT ON FUNCTION tensile.is_home() IS 'Whether the numbers of roles and tables in the catalog are those of this database.';

INSERT INTO tensile.homes SELECT t.* FROM tensile.this_home() t WHERE NOT EXISTS (SELECT FROM tensile.homes);

-- Names tell in another cluster whose something was, and PostgreSQL reports to nobody that a role is renamed.
CREATE OR REPLACE FUNCTION tensile.refresh_names() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH stale_jobs AS (
        SELECT j.id, r.rolname FROM tensile.jobs j JOIN pg_roles r ON r.oid = j.submitted_by
        WHERE j.owner <> r.rolname AND tensile.is_home() FOR NO KEY UPDATE OF j SKIP LOCKED),
    stale_models AS (
        SELECT m.id, r.rolname FROM tensile.models m JOIN pg_roles r ON r.oid = m.owned_by
        WHERE m.owner <> r.rolname AND tensile.is_home() FOR NO KEY UPDATE OF m SKIP LOCKED),
    stale_quotas AS (
        SELECT q.role_oid, r.rolname FROM tensile.quotas q JOIN pg_roles r ON r.oid = q.role_oid
        WHERE q.role <> r.rolname AND tensile.is_home() FOR NO KEY UPDATE OF q SKIP LOCKED),
    jobs AS (UPDATE tensile.jobs j SET owner = s.rolname FROM stale_jobs s WHERE j.id = s.id RETURNING 1),
    models AS (UPDATE tensile.models m SET owner = s.rolname FROM stale_models s WHERE m.id = s.id RETURNING 1),
    quotas AS (UPDATE tensile.quotas q SET role = s.rolname FROM stale_quotas s WHERE q.role_oid = s.role_oid RETURNING 1)
    SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM models) + (SELECT count(*) FROM quotas)
$$;

COMMENT ON FUNCTION tensile.refresh_names() IS 'Brings the names beside the numbers of roles up to date, and returns of how many rows. Workers call it.';
