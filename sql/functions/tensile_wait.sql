CREATE OR REPLACE FUNCTION tensile.tensile_wait(job_id bigint, timeout double precision DEFAULT NULL)
RETURNS TABLE (
    job_id bigint,
    state text,
    model text,
    version integer,
    epochs integer,
    loss double precision,
    metrics jsonb,
    seconds double precision,
    peak_bytes bigint,
    saved double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000 ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('wait', jsonb_build_object(
        'job_id', job_id, 'timeout', timeout))) AS r (
    job_id bigint, state text, model text, version integer, epochs integer, loss double precision,
    metrics jsonb, seconds double precision, peak_bytes bigint, saved double precision)
$$;

COMMENT ON FUNCTION tensile.tensile_wait(bigint, double precision)
IS 'Waits for a job, at most timeout seconds, and returns how it stands. Raises the job''s error if it failed. A wait that is cancelled leaves the job alone.';
