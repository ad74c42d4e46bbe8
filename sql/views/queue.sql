CREATE OR REPLACE VIEW tensile.queue WITH (security_barrier) AS
WITH line AS (
    -- Over the jobs of all owners: how many are ahead is no secret, which they are is one.
    SELECT j.*, CASE WHEN j.state <> 'paused' THEN
        row_number() OVER (PARTITION BY j.state = 'paused' ORDER BY j.priority DESC, j.id) END AS place
    FROM tensile.jobs j WHERE j.state IN ('queued', 'waiting', 'paused'))
SELECT
    line.place,
    line.id AS job_id,
    line.owner,
    line.kind,
    line.architecture,
    line.model,
    line.source_name AS source,
    line.priority,
    line.state,
    line.wait_reason,
    line.created_at,
    clock_timestamp() - line.created_at AS waiting_for
FROM line
WHERE line.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.queue IS 'The jobs that wait, and how many will be claimed before each; the paused ones, too.';
COMMENT ON COLUMN tensile.queue.place IS 'From 1: the next to be claimed. NULL: it is paused.';
COMMENT ON COLUMN tensile.queue.job_id IS 'The job.';
COMMENT ON COLUMN tensile.queue.owner IS 'Who asked for it.';
COMMENT ON COLUMN tensile.queue.kind IS 'What is asked for.';
COMMENT ON COLUMN tensile.queue.architecture IS 'The network.';
COMMENT ON COLUMN tensile.queue.model IS 'The model that it makes or uses.';
COMMENT ON COLUMN tensile.queue.source IS 'The table or view that it reads.';
COMMENT ON COLUMN tensile.queue.priority IS 'Higher ones are claimed first.';
COMMENT ON COLUMN tensile.queue.state IS 'queued, waiting for memory on a worker, or paused.';
COMMENT ON COLUMN tensile.queue.wait_reason IS 'Why it waits.';
COMMENT ON COLUMN tensile.queue.created_at IS 'When it was asked for.';
COMMENT ON COLUMN tensile.queue.waiting_for IS 'How long ago that is.';
