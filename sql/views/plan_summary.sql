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
    -- MSR, EOR and CBR of the plan, design section 9.
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
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.plan_summary IS 'Each plan in a line: its peaks beside eager PyTorch''s and the measured one, what it swaps and recomputes, and why it was made.';
