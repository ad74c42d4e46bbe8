CREATE OR REPLACE VIEW tensile.searches WITH (security_barrier) AS
SELECT
    j.id AS search_id,
    coalesce(o.rolname::text COLLATE "default", j.owner) AS owner,
    j.source_name AS source,
    j.model,
    j.state,
    j.wait_reason,
    r.method,
    r.metric,
    r.space,
    r.trials,
    r.max_parallel,
    t.begun,
    t.unfinished,
    t.succeeded,
    t.pruned,
    t.begun - t.unfinished - t.succeeded - t.pruned AS failed,
    best.trial AS best_trial,
    best.value AS best_value,
    best.params AS best_params,
    best.version,
    j.created_at,
    j.finished_at
FROM tensile.search_requests r
JOIN tensile.jobs j ON j.id = r.job_id
LEFT JOIN pg_catalog.pg_roles o ON o.oid = j.submitted_by
CROSS JOIN LATERAL (
    SELECT count(*) AS begun,
           count(*) FILTER (WHERE k.state IN ('queued', 'waiting', 'running', 'paused')) AS unfinished,
           count(*) FILTER (WHERE k.state = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE k.state = 'cancelled' AND s.pruned_reason IS NOT NULL) AS pruned
    FROM tensile.search_trials s JOIN tensile.jobs k ON k.id = s.job_id
    WHERE s.search_id = j.id) t
LEFT JOIN LATERAL (
    SELECT s.number AS trial, s.value, s.params, k.model_version AS version
    FROM tensile.search_trials s JOIN tensile.jobs k ON k.id = s.job_id
    WHERE s.search_id = j.id AND k.state = 'succeeded' AND s.value IS NOT NULL
    ORDER BY CASE WHEN r.metric IN ('loss', 'mse', 'rmse', 'mae') THEN s.value ELSE -s.value END, s.number
    LIMIT 1) best ON true
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.searches IS 'Searches for hyperparameters: how far they are, and the best so far.';
COMMENT ON COLUMN tensile.searches.search_id IS 'The search, a job.';
COMMENT ON COLUMN tensile.searches.owner IS 'Who asked for it.';
COMMENT ON COLUMN tensile.searches.source IS 'The table or view that its trials read.';
COMMENT ON COLUMN tensile.searches.model IS 'The model that it makes.';
COMMENT ON COLUMN tensile.searches.state IS 'The job''s state.';
COMMENT ON COLUMN tensile.searches.wait_reason IS 'Why it begins no trial although it might.';
COMMENT ON COLUMN tensile.searches.method IS 'Who chooses the values.';
COMMENT ON COLUMN tensile.searches.metric IS 'The validation metric that decides.';
COMMENT ON COLUMN tensile.searches.space IS 'Arguments and options to vary, and over what values.';
COMMENT ON COLUMN tensile.searches.trials IS 'Trials to begin, at most.';
COMMENT ON COLUMN tensile.searches.max_parallel IS 'Trials under way at a time, at most.';
COMMENT ON COLUMN tensile.searches.begun IS 'Trials begun.';
COMMENT ON COLUMN tensile.searches.unfinished IS 'Trials that have not ended.';
COMMENT ON COLUMN tensile.searches.succeeded IS 'Trials trained to their end.';
COMMENT ON COLUMN tensile.searches.pruned IS 'Trials stopped early.';
COMMENT ON COLUMN tensile.searches.failed IS 'Trials that failed, or were cancelled.';
COMMENT ON COLUMN tensile.searches.best_trial IS 'The best trial so far of those trained to their end.';
COMMENT ON COLUMN tensile.searches.best_value IS 'Its metric.';
COMMENT ON COLUMN tensile.searches.best_params IS 'The values chosen for it.';
COMMENT ON COLUMN tensile.searches.version IS 'The version of its model.';
COMMENT ON COLUMN tensile.searches.created_at IS 'When it was asked for.';
COMMENT ON COLUMN tensile.searches.finished_at IS 'When it ended.';
