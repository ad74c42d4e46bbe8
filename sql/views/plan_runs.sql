CREATE OR REPLACE VIEW tensile.plan_runs WITH (security_barrier) AS
SELECT
    p.job_id,
    p.version,
    r.place::integer - 1 AS ordinal,
    r.op AS op_id,
    o.target,
    o.phase,
    r.recomputes,
    r.begin_ns,
    r.end_ns
FROM tensile.plans p
JOIN tensile.jobs j ON j.id = p.job_id
CROSS JOIN LATERAL ROWS FROM (
    pg_catalog.unnest(p.run_ops),
    pg_catalog.unnest(p.run_begin_ns),
    pg_catalog.unnest(p.run_end_ns),
    pg_catalog.unnest(p.run_recomputes)
) WITH ORDINALITY AS r (op, begin_ns, end_ns, recomputes, place)
JOIN tensile.graph_ops o ON o.digest = p.graph_digest AND o.op_id = r.op
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.plan_runs IS 'When each op runs over one iteration as each plan predicts it, recomputations included.';
COMMENT ON COLUMN tensile.plan_runs.job_id IS 'The job.';
COMMENT ON COLUMN tensile.plan_runs.version IS 'The plan.';
COMMENT ON COLUMN tensile.plan_runs.ordinal IS 'The run''s place in time, from 0.';
COMMENT ON COLUMN tensile.plan_runs.op_id IS 'The op, of the plan''s graph.';
COMMENT ON COLUMN tensile.plan_runs.target IS 'Its operator.';
COMMENT ON COLUMN tensile.plan_runs.phase IS 'The part of the iteration that it belongs to.';
COMMENT ON COLUMN tensile.plan_runs.recomputes IS 'Whether the run is a recomputation.';
COMMENT ON COLUMN tensile.plan_runs.begin_ns IS 'When it begins, in ns from the iteration''s start.';
COMMENT ON COLUMN tensile.plan_runs.end_ns IS 'When it ends, in ns.';
