CREATE OR REPLACE VIEW tensile.plan_summary WITH (security_barrier) AS
SELECT
    p.job_id,
    p.version,
    j.architecture,
    j.batch_size,
    j.optimizer,
    p.policy,
    p.reason,
    p.budget_nbytes,
    p.vanilla_peak_nbytes,
    p.peak_nbytes AS planned_peak_nbytes,
    p.guaranteed_peak_nbytes,
    p.lower_bound_peak_nbytes,
    m.measured_peak_nbytes,
    -- MSR, EOR and CBR of the plan, as TENSILE section V-A defines them.
    1 - p.peak_nbytes::float8 / nullif(p.vanilla_peak_nbytes, 0) AS msr,
    p.time_ns::float8 / nullif(p.vanilla_time_ns, 0) AS eor,
    (1 - p.peak_nbytes::float8 / nullif(p.vanilla_peak_nbytes, 0))
        / nullif(p.time_ns::float8 / nullif(p.vanilla_time_ns, 0), 0) AS cbr,
    p.swap_out_count,
    p.swap_nbytes,
    p.recompute_count,
    p.vanilla_time_ns,
    p.time_ns,
    p.lower_bound_time_ns,
    p.planning_ns,
    p.adopted_at_iteration,
    p.created_at
FROM tensile.plans p
JOIN tensile.jobs j ON j.id = p.job_id
LEFT JOIN LATERAL (
    SELECT max(k.peak_nbytes) AS measured_peak_nbytes FROM tensile.memory_peaks k
    WHERE k.job_id = p.job_id AND k.plan_version = p.version) m ON true
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.plan_summary IS 'Each plan in a line: its peaks beside eager PyTorch''s and the measured one, what it swaps and recomputes, and why it was made.';
COMMENT ON COLUMN tensile.plan_summary.job_id IS 'The job.';
COMMENT ON COLUMN tensile.plan_summary.version IS 'The plan.';
COMMENT ON COLUMN tensile.plan_summary.architecture IS 'The network.';
COMMENT ON COLUMN tensile.plan_summary.batch_size IS 'Rows an iteration.';
COMMENT ON COLUMN tensile.plan_summary.optimizer IS 'The optimizer.';
COMMENT ON COLUMN tensile.plan_summary.policy IS 'Which planner made it.';
COMMENT ON COLUMN tensile.plan_summary.reason IS 'Why it was made.';
COMMENT ON COLUMN tensile.plan_summary.budget_nbytes IS 'What it had to meet, in bytes.';
COMMENT ON COLUMN tensile.plan_summary.vanilla_peak_nbytes IS 'The peak of eager PyTorch, in bytes.';
COMMENT ON COLUMN tensile.plan_summary.planned_peak_nbytes IS 'The peak it predicts, in bytes.';
COMMENT ON COLUMN tensile.plan_summary.guaranteed_peak_nbytes IS 'The most it can hold, whatever the latencies.';
COMMENT ON COLUMN tensile.plan_summary.lower_bound_peak_nbytes IS 'No plan of whole ops, nothing packed, can do with less, in bytes.';
COMMENT ON COLUMN tensile.plan_summary.measured_peak_nbytes IS 'The highest peak measured under it, in bytes.';
COMMENT ON COLUMN tensile.plan_summary.msr IS 'Memory saving rate: the share of the vanilla peak that it saves.';
COMMENT ON COLUMN tensile.plan_summary.eor IS 'Extra overhead rate: its time over the vanilla time.';
COMMENT ON COLUMN tensile.plan_summary.cbr IS 'Cost-benefit rate: msr over eor.';
COMMENT ON COLUMN tensile.plan_summary.swap_out_count IS 'Swap-outs an iteration.';
COMMENT ON COLUMN tensile.plan_summary.swap_nbytes IS 'Bytes swapped out an iteration.';
COMMENT ON COLUMN tensile.plan_summary.recompute_count IS 'Ops run again an iteration.';
COMMENT ON COLUMN tensile.plan_summary.vanilla_time_ns IS 'An iteration of eager PyTorch, in ns.';
COMMENT ON COLUMN tensile.plan_summary.time_ns IS 'An iteration by this plan, in ns.';
COMMENT ON COLUMN tensile.plan_summary.lower_bound_time_ns IS 'No plan can be faster, in ns.';
COMMENT ON COLUMN tensile.plan_summary.planning_ns IS 'How long the planning took, in ns.';
COMMENT ON COLUMN tensile.plan_summary.adopted_at_iteration IS 'The first iteration that ran by it.';
COMMENT ON COLUMN tensile.plan_summary.created_at IS 'When it was made.';
