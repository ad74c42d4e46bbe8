-- What a backend writes to tensile.jobs.  Row-level security says who may: these run as their caller.
CREATE OR REPLACE FUNCTION tensile.insert_job(request jsonb) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    asked tensile.jobs := jsonb_populate_record(NULL::tensile.jobs, request);
    job bigint;
BEGIN
    -- Over the loopback connection this sees what is committed, which is what a worker will see.
    IF NOT EXISTS (SELECT FROM pg_class WHERE oid = asked.source_oid) THEN
        RAISE undefined_table USING
            MESSAGE = format('%s was made by this transaction, and a worker cannot see it yet', asked.source_name),
            HINT = 'COMMIT first; or use tensile_submit, whose job is seen when the transaction commits.';
    END IF;
    -- The worker would wait for this session, which waits for it: nobody notices such a deadlock.
    IF tensile.has_locked(asked.client_pid, asked.source_oid) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = format('this transaction has locked %s, which a worker is to read', asked.source_name),
            HINT = 'COMMIT what truncated, altered or locked it first.';
    END IF;
    INSERT INTO tensile.jobs (
        kind, submitted_by, owner, client_pid, client_started_at, architecture, source_oid, source_name, target,
        features, model, model_version, model_id, epochs, batch_size, optimizer, learning_rate, validation, seed,
        priority, memory_limit_nbytes, policy, options, settings, initial_model_id, pretrained_id)
    SELECT
        asked.kind, oid, rolname, asked.client_pid, asked.client_started_at, asked.architecture, asked.source_oid,
        asked.source_name, asked.target, asked.features, asked.model, asked.model_version, asked.model_id,
        asked.epochs, asked.batch_size, asked.optimizer, asked.learning_rate, asked.validation,
        coalesce(asked.seed, 0), coalesce(asked.priority, 0), asked.memory_limit_nbytes,
        coalesce(asked.policy, 'auto'), coalesce(asked.options, '{}'),
        coalesce(asked.settings, '{}'), asked.initial_model_id, asked.pretrained_id
    FROM pg_roles WHERE rolname = current_user
    RETURNING id INTO job;
    IF asked.kind = 'search' THEN
        INSERT INTO tensile.search_requests (job_id, space, method, trials, max_parallel, metric)
        SELECT job, s.space, s.method, s.trials, s.max_parallel, s.metric
        FROM jsonb_populate_record(NULL::tensile.search_requests, request -> 'search') s;
    END IF;
    RETURN job;
END
$$;

COMMENT ON FUNCTION tensile.insert_job(jsonb) IS 'Inserts a job of the current role; keys are columns of tensile.jobs, and search, for a search, those of tensile.search_requests.';

CREATE OR REPLACE FUNCTION tensile.request_cancel(job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH asked AS (
        UPDATE tensile.jobs SET cancel_requested = true
        WHERE id = $1 AND state IN ('queued', 'waiting', 'running', 'paused') RETURNING id)
    SELECT EXISTS (SELECT FROM asked)
$$;

COMMENT ON FUNCTION tensile.request_cancel(bigint) IS 'Asks for a job''s end; false if it had ended or is none of the role''s.';

-- A statement that ends by Ctrl-C or an error takes its job along itself (udf/wait.py).  One whose process is
-- terminated, or dies with its connection, cannot: workers look for its job.  The owner sees all processes,
-- which workers do not.
CREATE OR REPLACE FUNCTION tensile.cancel_abandoned() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH abandoned AS (
        SELECT j.id, j.client_pid FROM tensile.jobs j
        WHERE j.state IN ('queued', 'waiting', 'running', 'paused') AND NOT j.cancel_requested
          AND j.client_started_at IS NOT NULL
          -- The number alone may be another process's by now.
          AND NOT EXISTS (SELECT FROM pg_stat_get_activity(j.client_pid) a
                          WHERE a.backend_start = j.client_started_at)
        FOR NO KEY UPDATE OF j SKIP LOCKED),
    told AS (
        INSERT INTO tensile.job_events (job_id, kind, detail)
        SELECT id, 'abandoned', jsonb_build_object('client_pid', client_pid) FROM abandoned),
    asked AS (
        UPDATE tensile.jobs j SET cancel_requested = true FROM abandoned a WHERE j.id = a.id RETURNING j.id)
    SELECT count(*) FROM asked
$$;

COMMENT ON FUNCTION tensile.cancel_abandoned() IS 'Asks for the end of jobs whose session is gone while it waited for them; returns how many. Workers call it.';

CREATE OR REPLACE FUNCTION tensile.job_status(job_id bigint) RETURNS jsonb
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT to_jsonb(j) - '{options,features,settings}'::text[] || jsonb_build_object(
        -- A search's trials learn the same: the first one tells.
        'notices', (SELECT coalesce(jsonb_agg(e.detail -> 'message' ORDER BY e.id), '[]')
                    FROM tensile.job_events e WHERE e.kind = 'notice' AND e.job_id IN (
                        j.id, (SELECT min(k.id) FROM tensile.jobs k WHERE k.search_id = j.id))),
        'silent_s', extract(epoch FROM clock_timestamp() - coalesce(j.heartbeat_at, j.updated_at)),
        'elapsed_s', extract(epoch FROM coalesce(j.finished_at, clock_timestamp()) - j.created_at))
    FROM tensile.jobs j WHERE j.id = $1
$$;

COMMENT ON FUNCTION tensile.job_status(bigint) IS 'A job''s row as JSON, what its worker wants its session to know, and for how long nothing was heard of it.';
