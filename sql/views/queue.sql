CREATE OR REPLACE VIEW tensile.queue WITH (security_barrier) AS
WITH line AS (
    -- Over the jobs of all owners: how many are ahead is no secret, which they are is one.
    SELECT j.*, CASE WHEN j.state <> 'paused' THEN
        row_number() OVER (PARTITION BY j.state = 'paused' ORDER BY j.priority DESC, j.id) END AS place
    FROM tensile.jobs j WHERE j.state IN ('queued', 'waiting', 'paused')),
offers AS MATERIALIZED (
    SELECT o.device, o.memory_nbytes, o.jobs < o.max_jobs AS has_place FROM tensile.offers o),
-- What a queued job may still wait for, as placements.py works it out.
suited AS (
    SELECT line.id, count(o.device) AS devices, count(o.device) FILTER (WHERE o.is_enough) AS enough,
           bool_or(o.is_enough AND (o.has_place OR line.kind = 'serve')) AS has_place
    FROM line LEFT JOIN LATERAL (
        SELECT offers.*, offers.memory_nbytes >= coalesce(line.needed_nbytes, 0) AS is_enough
        FROM offers WHERE offers.device = coalesce(line.options ->> 'device', offers.device)) o ON true
    WHERE line.state = 'queued' GROUP BY line.id)
SELECT
    line.place,
    line.id AS job_id,
    coalesce(o.rolname::text COLLATE "default", line.owner) AS owner,
    line.kind,
    line.architecture,
    line.model,
    line.source_name AS source,
    line.priority,
    line.state,
    CASE WHEN line.state = 'paused' THEN line.pause_reason
         WHEN line.wait_reason IS NOT NULL OR line.state <> 'queued' THEN line.wait_reason
         WHEN suited.devices = 0 THEN
             'waits for a worker' || coalesce(' with device "' || (line.options ->> 'device') || '"', '')
             || ': none is alive'
         WHEN suited.enough = 0 THEN 'waits for a device with ' || tensile.format_nbytes(line.needed_nbytes)
         WHEN NOT suited.has_place THEN 'waits for a worker that can take one more job'
         WHEN line.meant_for IS NOT NULL THEN format('goes to worker %s, which has room', line.meant_for)
    END AS wait_reason,
    line.created_at,
    clock_timestamp() - line.created_at AS waiting_for,
    line.worker_id
FROM line LEFT JOIN suited ON suited.id = line.id
LEFT JOIN pg_catalog.pg_roles o ON o.oid = line.submitted_by
WHERE line.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.queue IS 'The jobs that wait, and how many will be claimed before each; the paused ones, too.';
COMMENT ON COLUMN tensile.queue.place IS 'From 1: the next to be claimed. NULL: it is paused.';
COMMENT ON COLUMN tensile.queue.job_id IS 'The job.';
COMMENT ON COLUMN tensile.queue.owner IS 'Who asked for it.';
COMMENT ON COLUMN tensile.queue.kind IS 'What is asked for.';
COMMENT ON COLUMN tensile.queue.architecture IS 'The network.';
COMMENT ON COLUMN tensile.queue.model IS 'The model that it makes or uses.';
COMMENT ON COLUMN tensile.queue.source IS 'The table or view that it reads; empty of a job that serves a model.';
COMMENT ON COLUMN tensile.queue.priority IS 'Higher ones are claimed first.';
COMMENT ON COLUMN tensile.queue.state IS 'queued, waiting for memory on a worker, or paused.';
COMMENT ON COLUMN tensile.queue.wait_reason IS 'Why it waits; NULL: a worker is about to take it, or tensile_pause has paused it.';
COMMENT ON COLUMN tensile.queue.created_at IS 'When it was asked for.';
COMMENT ON COLUMN tensile.queue.waiting_for IS 'How long ago that is.';
COMMENT ON COLUMN tensile.queue.worker_id IS 'The worker that holds it in line; NULL: none does.';
