CREATE OR REPLACE FUNCTION tensile.tensile_grant_worker(role name) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('grant_worker', jsonb_build_object('role', role))
$$;

COMMENT ON FUNCTION tensile.tensile_grant_worker(name)
IS 'Lets a role log in as a worker, which may become every role that uses tensile_db. For those who may GRANT tensile_worker.';
