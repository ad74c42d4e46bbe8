-- Views run with the rights of their owner, past row-level security, and say themselves whose rows they
-- show: security_invoker, which would not need that, came with PostgreSQL 15.
CREATE OR REPLACE VIEW tensile.progress WITH (security_barrier) AS
SELECT
    j.id AS job_id,
    j.client_pid AS pid,
    j.database AS datname,
    j.owner AS usename,
    j.source_oid::regclass AS relid,
    j.kind AS command,
    j.architecture,
    j.model,
    j.state,
    j.phase,
    j.wait_reason,
    j.epochs AS epochs_total,
    j.epoch,
    j.iterations_total AS batches_total,
    j.iteration AS batches_done,
    j.rows_total,
    j.loss,
    j.samples_per_second,
    j.budget_nbytes AS device_bytes_budget,
    j.planned_peak_nbytes AS device_bytes_planned,
    j.measured_peak_nbytes AS device_bytes_peak,
    1 - j.measured_peak_nbytes::float8 / nullif(j.vanilla_peak_nbytes, 0) AS saved,
    make_interval(secs => (j.iterations_total - j.iteration) * j.batch_size / nullif(j.samples_per_second, 0)) AS eta,
    j.worker_id,
    j.cancel_requested,
    j.created_at,
    j.started_at
FROM tensile.jobs j
WHERE j.state NOT IN ('succeeded', 'failed', 'cancelled')
  AND (j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
       OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE')));

COMMENT ON VIEW tensile.progress IS 'The jobs under way and how far each has come, in the shape of pg_stat_progress_*.';
