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
-- In PL/pgSQL, which keeps its plan: policies ask with every query.
CREATE OR REPLACE FUNCTION tensile.is_at_home() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT coalesce(bool_and((h.system_identifier, h.jobs_oid) = (c.system_identifier, 'tensile.jobs'::regclass)), false)
            FROM tensile.homes h, pg_control_system() c);
END
$$;

COMMENT ON FUNCTION tensile.is_at_home() IS 'Whether the catalog''s numbers of roles and tables are those of this database.';
