CREATE OR REPLACE VIEW tensile.trials WITH (security_barrier) AS
SELECT
    t.search_id,
    t.number AS trial,
    t.job_id,
    CASE WHEN t.pruned_reason IS NOT NULL AND j.state = 'cancelled' THEN 'pruned' ELSE j.state END AS state,
    t.params,
    r.metric,
    t.value,
    (SELECT coalesce(max(m.epoch), 0) FROM tensile.training_metrics m
     WHERE m.job_id = t.job_id AND m.split = 'validation') AS epochs_done,
    j.epochs,
    j.model_version AS version,
    t.pruned_reason AS pruned_why,
    CASE WHEN t.pruned_reason IS NULL THEN j.error_message END AS error,
    t.created_at,
    j.finished_at
FROM tensile.search_trials t
JOIN tensile.search_requests r ON r.job_id = t.search_id
JOIN tensile.jobs j ON j.id = t.job_id
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.trials IS 'The trials of searches: a training each.';
COMMENT ON COLUMN tensile.trials.search_id IS 'The search, a job.';
COMMENT ON COLUMN tensile.trials.trial IS 'The trial, from 0.';
COMMENT ON COLUMN tensile.trials.job_id IS 'The job that trains.';
COMMENT ON COLUMN tensile.trials.state IS 'The job''s state; or pruned: stopped early by its search.';
COMMENT ON COLUMN tensile.trials.params IS 'The values chosen for it.';
COMMENT ON COLUMN tensile.trials.metric IS 'The validation metric that decides.';
COMMENT ON COLUMN tensile.trials.value IS 'That metric of its model; of a pruned trial, of its last epoch.';
COMMENT ON COLUMN tensile.trials.epochs_done IS 'Epochs that it has trained and validated.';
COMMENT ON COLUMN tensile.trials.epochs IS 'Epochs that it was to train.';
COMMENT ON COLUMN tensile.trials.version IS 'The version of its model, where that is kept.';
COMMENT ON COLUMN tensile.trials.pruned_why IS 'Why it was stopped early.';
COMMENT ON COLUMN tensile.trials.error IS 'Why it failed, or that it was cancelled.';
COMMENT ON COLUMN tensile.trials.created_at IS 'When it was begun.';
COMMENT ON COLUMN tensile.trials.finished_at IS 'When it ended.';
