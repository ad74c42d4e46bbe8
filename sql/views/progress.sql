-- Views run with the rights of their owner, past row-level security, and say themselves whose rows they
-- show: security_invoker, which would not need that, came with PostgreSQL 15.  Owners are shown by the names that
-- they have now: no trigger hears of ALTER ROLE ... RENAME.  Of one that is gone the former name is left.
CREATE OR REPLACE VIEW tensile.progress WITH (security_barrier) AS
SELECT
    j.id AS job_id,
    j.client_pid AS pid,
    j.database AS datname,
    coalesce(o.rolname::text COLLATE "default", j.owner) AS usename,
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
    j.started_at,
    j.pause_requested,
    j.pause_reason,
    j.device_seconds
FROM tensile.jobs j LEFT JOIN pg_catalog.pg_roles o ON o.oid = j.submitted_by
WHERE j.state IN ('queued', 'waiting', 'running', 'paused')
  AND (j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
       OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE')));

COMMENT ON VIEW tensile.progress IS 'The jobs under way and how far each has come, in the shape of pg_stat_progress_*.';
COMMENT ON COLUMN tensile.progress.job_id IS 'The job.';
COMMENT ON COLUMN tensile.progress.pid IS 'The server process that asked for it; NULL of a job that serves.';
COMMENT ON COLUMN tensile.progress.datname IS 'Its database.';
COMMENT ON COLUMN tensile.progress.usename IS 'Who asked for it.';
COMMENT ON COLUMN tensile.progress.relid IS 'The table or view that it reads; of a job that serves, none.';
COMMENT ON COLUMN tensile.progress.command IS 'train, predict, evaluate, explain, search or serve.';
COMMENT ON COLUMN tensile.progress.architecture IS 'The network.';
COMMENT ON COLUMN tensile.progress.model IS 'The model that it makes or uses.';
COMMENT ON COLUMN tensile.progress.state IS 'Where in its life it is.';
COMMENT ON COLUMN tensile.progress.phase IS 'What is being done at present.';
COMMENT ON COLUMN tensile.progress.wait_reason IS 'Why it waits.';
COMMENT ON COLUMN tensile.progress.epochs_total IS 'Epochs to do.';
COMMENT ON COLUMN tensile.progress.epoch IS 'The epoch at present, from 1.';
COMMENT ON COLUMN tensile.progress.batches_total IS 'Iterations to do.';
COMMENT ON COLUMN tensile.progress.batches_done IS 'Iterations done.';
COMMENT ON COLUMN tensile.progress.rows_total IS 'Rows read from the source; of a job that serves, rows predicted.';
COMMENT ON COLUMN tensile.progress.loss IS 'The newest training loss.';
COMMENT ON COLUMN tensile.progress.samples_per_second IS 'Rows a second, lately; of a job that serves, since it began to.';
COMMENT ON COLUMN tensile.progress.device_bytes_budget IS 'The device memory granted to it, in bytes.';
COMMENT ON COLUMN tensile.progress.device_bytes_planned IS 'The peak that its plan predicts, in bytes.';
COMMENT ON COLUMN tensile.progress.device_bytes_peak IS 'The highest peak measured, in bytes.';
COMMENT ON COLUMN tensile.progress.saved IS 'The share of eager PyTorch''s peak that it does without.';
COMMENT ON COLUMN tensile.progress.eta IS 'How long it will go on at this rate.';
COMMENT ON COLUMN tensile.progress.worker_id IS 'The worker that holds it.';
COMMENT ON COLUMN tensile.progress.cancel_requested IS 'Its owner wants it stopped.';
COMMENT ON COLUMN tensile.progress.created_at IS 'When it was asked for.';
COMMENT ON COLUMN tensile.progress.started_at IS 'When it started.';
COMMENT ON COLUMN tensile.progress.pause_requested IS 'It is to rest.';
COMMENT ON COLUMN tensile.progress.pause_reason IS 'Why, where tensile_pause was not asked for it.';
COMMENT ON COLUMN tensile.progress.device_seconds IS 'How long its iterations took on devices, in seconds.';
