CREATE OR REPLACE FUNCTION tensile.tensile_grant_usage(role name, admin boolean DEFAULT false) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('grant_usage', jsonb_build_object('role', role, 'admin', admin))
$$;

COMMENT ON FUNCTION tensile.tensile_grant_usage(name, boolean)
IS 'Lets a role use tensile_db, and lets workers read tables as this role. For those who may GRANT the role.';
