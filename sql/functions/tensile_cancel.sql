CREATE OR REPLACE FUNCTION tensile.tensile_cancel(job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('cancel', jsonb_build_object('job_id', job_id))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_cancel(bigint)
IS 'Asks for the end of a job, which comes within an iteration after COMMIT. False if it had ended already.';
