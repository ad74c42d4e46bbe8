CREATE OR REPLACE FUNCTION tensile.tensile_set_quota(
    role name,
    max_concurrent_jobs integer DEFAULT NULL,
    max_device_nbytes bigint DEFAULT NULL,
    max_device_seconds double precision DEFAULT NULL,
    max_serving_requests integer DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('set_quota', jsonb_build_object(
        'role', role, 'max_concurrent_jobs', max_concurrent_jobs, 'max_device_nbytes', max_device_nbytes,
        'max_device_seconds', max_device_seconds, 'max_serving_requests', max_serving_requests))
$$;

COMMENT ON FUNCTION tensile.tensile_set_quota(name, integer, bigint, double precision, integer)
IS 'Sets all limits of a role, or, where the role is NULL, those of every role without a quota of its own. What is left out is unlimited. For members of tensile_admin.';
