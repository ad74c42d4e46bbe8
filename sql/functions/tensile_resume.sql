CREATE OR REPLACE FUNCTION tensile.tensile_resume(job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('resume', jsonb_build_object('job_id', job_id))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_resume(bigint)
IS 'Lets a paused job go on from where it was, on any worker. False if it was not paused.';
