-- Owners and tables are kept by number.  What a dump brings into another database, or another cluster, has the
-- numbers of the former one, which are nobody's there, or somebody else's.
--
-- As the owner, from whom alone an administrator may not have taken the right to look.
CREATE OR REPLACE FUNCTION tensile.current_home() RETURNS tensile.homes
LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT ROW(c.system_identifier, 'tensile.jobs'::regclass::oid, now())::tensile.homes FROM pg_control_system() c $$;

COMMENT ON FUNCTION tensile.current_home() IS 'The row of tensile.homes that stands for this database.';

-- A copy by CREATE DATABASE ... TEMPLATE, a standby and a backup of the cluster's files keep all numbers.
CREATE OR REPLACE FUNCTION tensile.is_at_home() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(bool_and((h.system_identifier, h.jobs_oid) = (c.system_identifier, c.jobs_oid)), false)
    FROM tensile.homes h, tensile.current_home() c
$$;

COMMENT ON FUNCTION tensile.is_at_home() IS 'Whether the catalog''s numbers of roles and tables are those of this database.';
