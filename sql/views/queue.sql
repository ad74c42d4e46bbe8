CREATE OR REPLACE VIEW tensile.queue WITH (security_barrier) AS
WITH line AS (
    -- Over the jobs of all owners: how many are ahead is no secret, which they are is one.
    SELECT j.*, row_number() OVER (ORDER BY j.priority DESC, j.id) AS place
    FROM tensile.jobs j WHERE j.state IN ('queued', 'waiting'))
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

COMMENT ON VIEW tensile.queue IS 'The jobs that wait, and how many will be claimed before each.';
