-- What live workers have for jobs, as workers themselves see it when they work out where a job goes.  How many
-- jobs there are of all owners is no secret, which they are is one.
CREATE OR REPLACE VIEW tensile.offers WITH (security_barrier) AS
SELECT
    w.id AS worker_id,
    w.host,
    w.device_name AS device,
    w.memory_nbytes,
    coalesce(d.shared_nbytes, 0) AS shared_nbytes,
    w.max_jobs,
    held.jobs,
    held.preparing,
    held.in_line,
    w.runs_alone,
    d.flops_per_s,
    w.cache,
    w.heartbeat_at
FROM tensile.workers w
JOIN tensile.devices d ON d.worker_id = w.id AND d.name = w.device_name
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE j.kind NOT IN ('search', 'serve')) AS jobs,
           count(*) FILTER (WHERE j.kind NOT IN ('search', 'serve') AND j.state = 'running' AND j.budget_nbytes IS NULL) AS preparing,
           count(*) FILTER (WHERE j.state = 'waiting') AS in_line
    FROM tensile.jobs j WHERE j.worker_id = w.id AND j.state IN ('waiting', 'running')) held
WHERE w.state = 'ready' AND w.memory_nbytes IS NOT NULL
  AND w.heartbeat_at > clock_timestamp() - make_interval(secs => w.lease_s);

COMMENT ON VIEW tensile.offers IS 'What each live worker has for jobs; a job goes to the one that offers it most.';
COMMENT ON COLUMN tensile.offers.worker_id IS 'The worker.';
COMMENT ON COLUMN tensile.offers.host IS 'The machine it runs on.';
COMMENT ON COLUMN tensile.offers.device IS 'Its device, as given at its start.';
COMMENT ON COLUMN tensile.offers.memory_nbytes IS 'The device memory it may use, in bytes.';
COMMENT ON COLUMN tensile.offers.shared_nbytes IS 'What the shares of its jobs take of that, without their recorded parts, in bytes; at most a heartbeat old.';
COMMENT ON COLUMN tensile.offers.max_jobs IS 'Jobs that it may hold.';
COMMENT ON COLUMN tensile.offers.jobs IS 'Jobs that it holds; those that take no place apart.';
COMMENT ON COLUMN tensile.offers.preparing IS 'Of these, jobs that have no share of the device yet.';
COMMENT ON COLUMN tensile.offers.in_line IS 'Of these, jobs that wait in line for memory.';
COMMENT ON COLUMN tensile.offers.runs_alone IS 'It runs one job at a time.';
COMMENT ON COLUMN tensile.offers.flops_per_s IS 'How fast its device is: sustained rate of arithmetic.';
COMMENT ON COLUMN tensile.offers.cache IS 'Where it keeps rows that its jobs have read.';
COMMENT ON COLUMN tensile.offers.heartbeat_at IS 'Its last sign of life.';
