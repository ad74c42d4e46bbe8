CREATE OR REPLACE VIEW tensile.memory_timeline WITH (security_barrier) AS
SELECT
    t.job_id,
    t.version,
    t.ordinal,
    t.at_ns,
    -- The last point lasts until the iteration's end.
    coalesce(lead(t.at_ns) OVER (PARTITION BY t.job_id, t.version ORDER BY t.ordinal), p.time_ns) AS until_ns,
    t.nbytes,
    p.budget_nbytes
FROM tensile.memory_timeline_points t
JOIN tensile.plans p USING (job_id, version)
JOIN tensile.jobs j ON j.id = t.job_id
WHERE j.submitted_by = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user AND tensile.is_at_home())
   OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE'));

COMMENT ON VIEW tensile.memory_timeline IS 'Device memory over one iteration as each plan predicts it, a row for each span.';
COMMENT ON COLUMN tensile.memory_timeline.job_id IS 'The job.';
COMMENT ON COLUMN tensile.memory_timeline.version IS 'The plan.';
COMMENT ON COLUMN tensile.memory_timeline.ordinal IS 'The span''s place in time, from 0.';
COMMENT ON COLUMN tensile.memory_timeline.at_ns IS 'Its start from the iteration''s, in ns.';
COMMENT ON COLUMN tensile.memory_timeline.until_ns IS 'Its end, in ns.';
COMMENT ON COLUMN tensile.memory_timeline.nbytes IS 'Held in it, in bytes.';
COMMENT ON COLUMN tensile.memory_timeline.budget_nbytes IS 'What the plan had to meet, in bytes.';
