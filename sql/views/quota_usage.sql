CREATE OR REPLACE VIEW tensile.quota_usage WITH (security_barrier) AS
SELECT
    r.rolname AS role,
    u.unfinished_jobs,
    q.max_concurrent_jobs,
    q.max_device_nbytes,
    u.device_seconds,
    q.max_device_seconds,
    (SELECT count(*) FROM tensile.serving_requests s WHERE s.requested_by = r.oid) AS serving_requests,
    q.max_serving_requests
FROM pg_catalog.pg_roles r
LEFT JOIN LATERAL (
    SELECT k.* FROM tensile.quotas k WHERE k.role_oid IN (r.oid, 0) ORDER BY k.role_oid DESC LIMIT 1) q ON true
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE j.state IN ('queued', 'waiting', 'running', 'paused')
                              AND j.kind NOT IN ('search', 'serve')) AS unfinished_jobs,
           coalesce(sum(j.device_seconds), 0) AS device_seconds,
           count(*) AS jobs
    FROM tensile.jobs j WHERE j.submitted_by = r.oid) u
WHERE (u.jobs > 0 OR q.role_oid = r.oid OR q.role_oid = 0 AND r.rolname = current_user)
  AND (r.rolname = current_user AND (SELECT tensile.is_at_home()) OR (SELECT pg_catalog.pg_has_role(current_user, 'tensile_admin', 'USAGE')));

COMMENT ON VIEW tensile.quota_usage IS 'What roles use of the devices, and what they may: a row for each that has jobs or a quota of its own, and one for the role that asks, where there is a quota for all.';
COMMENT ON COLUMN tensile.quota_usage.role IS 'The role.';
COMMENT ON COLUMN tensile.quota_usage.unfinished_jobs IS 'Its jobs that have not ended, the paused ones, too; those that search or serve apart.';
COMMENT ON COLUMN tensile.quota_usage.max_concurrent_jobs IS 'How many it may have; NULL: any number.';
COMMENT ON COLUMN tensile.quota_usage.max_device_nbytes IS 'Device memory that each of its jobs may have, in bytes; NULL: no limit.';
COMMENT ON COLUMN tensile.quota_usage.device_seconds IS 'Device time that all its jobs have used, in seconds.';
COMMENT ON COLUMN tensile.quota_usage.max_device_seconds IS 'How much it may use; NULL: no limit.';
COMMENT ON COLUMN tensile.quota_usage.serving_requests IS 'Rows that its sessions wait to have predicted.';
COMMENT ON COLUMN tensile.quota_usage.max_serving_requests IS 'How many they may at a time; NULL: any number.';
