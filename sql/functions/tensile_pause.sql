CREATE OR REPLACE FUNCTION tensile.tensile_pause(job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('pause', jsonb_build_object('job_id', job_id))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_pause(bigint)
IS 'Lets a training job rest: within an iteration after COMMIT it leaves a checkpoint and gives its device memory back, and no worker takes it until tensile_resume. False if that was asked for already.';
