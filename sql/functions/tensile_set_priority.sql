CREATE OR REPLACE FUNCTION tensile.tensile_set_priority(job_id bigint, priority integer) RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('set_priority', jsonb_build_object('job_id', job_id, 'priority', priority))::boolean
$$;

COMMENT ON FUNCTION tensile.tensile_set_priority(bigint, integer)
IS 'Moves a job in the line for workers and device memory: higher goes first. Members of tensile_priority alone raise it above 0. False if the job had this priority already.';
