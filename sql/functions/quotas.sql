-- Quotas.  A trigger holds them, so that they hold for whoever inserts a job, however it is done.
CREATE OR REPLACE FUNCTION tensile.quota_of(role oid) RETURNS tensile.quotas
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT q FROM tensile.quotas q WHERE q.role_oid IN ($1, 0) ORDER BY q.role_oid DESC LIMIT 1 $$;

COMMENT ON FUNCTION tensile.quota_of(oid) IS 'The quota of a role: its own, else that of all others; NULL where there is neither.';

CREATE OR REPLACE FUNCTION tensile.device_seconds_of(role oid) RETURNS double precision
LANGUAGE sql STABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(sum(j.device_seconds), 0) FROM tensile.jobs j WHERE j.submitted_by = $1 $$;

COMMENT ON FUNCTION tensile.device_seconds_of(oid) IS 'Device time used by all jobs of a role that one may see, in seconds.';

-- Until the transaction ends.
CREATE OR REPLACE FUNCTION tensile.lock_quota(role oid, counted text) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO tensile.quota_locks (role_oid, counted) VALUES ($1, $2) ON CONFLICT DO NOTHING;
    SELECT FROM tensile.quota_locks l WHERE l.role_oid = $1 AND l.counted = $2 FOR UPDATE
$$;

COMMENT ON FUNCTION tensile.lock_quota(oid, text) IS 'Waits for other transactions that count what a role has. For triggers.';

-- As the installing role, for all jobs of the submitter count and no setting of the caller's matters.  Those of
-- one role wait for one another here, so that two sessions at once cannot both be the last that is let in.
CREATE OR REPLACE FUNCTION tensile.check_quota() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    quota constant tensile.quotas := tensile.quota_of(NEW.submitted_by);
    more constant text := format('a member of tensile_admin can raise the quota: tensile_set_quota(%L, ...).',
                                 NEW.owner);
    unfinished bigint;
    used double precision;
BEGIN
    IF NEW.memory_limit_nbytes > quota.max_device_nbytes THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('memory_limit is %s bytes, and a job of role "%s" may have at most %s bytes of'
                             ' device memory', NEW.memory_limit_nbytes, NEW.owner, quota.max_device_nbytes),
            HINT = 'Leave memory_limit out, or ask for less; ' || more;
    END IF;
    -- The planner keeps within it.
    NEW.memory_limit_nbytes := coalesce(NEW.memory_limit_nbytes, quota.max_device_nbytes);
    IF quota.max_concurrent_jobs IS NULL AND quota.max_device_seconds IS NULL THEN
        RETURN NEW;
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a transaction with one snapshot cannot see how much of its quota the role "%s"'
                             ' has used', NEW.owner),
            HINT = 'Submit at isolation level READ COMMITTED.';
    END IF;
    -- A job that serves is counted by nobody, and whoever asks for a row may have one of these locks himself.
    IF NEW.kind <> 'serve' THEN
        BEGIN
            PERFORM tensile.lock_quota(NEW.submitted_by, 'jobs');
        EXCEPTION WHEN lock_not_available THEN
            RAISE lock_not_available USING
                MESSAGE = format('another transaction of role "%s" has submitted a job and has not ended', NEW.owner),
                HINT = 'COMMIT it first: its job counts towards the quota, or does not.';
        END;
    END IF;
    IF quota.max_concurrent_jobs IS NOT NULL AND NEW.kind <> 'serve' THEN
        SELECT count(*) INTO unfinished FROM tensile.jobs j
        WHERE j.submitted_by = NEW.submitted_by AND j.state IN ('queued', 'waiting', 'running', 'paused')
          -- A search computes nothing itself: were its place one of those that its trials need, a few searches
          -- would wait for one another for ever.
          AND (NEW.kind = 'search' OR j.kind <> 'search')
          -- Whoever asks for a prediction submits no job.
          AND j.kind <> 'serve';
    END IF;
    IF unfinished >= quota.max_concurrent_jobs THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('role "%s" has %s unfinished jobs, and may have at most %s',
                             NEW.owner, unfinished, quota.max_concurrent_jobs),
            HINT = 'Wait for one to end, or cancel one: tensile.progress lists them; ' || more;
    END IF;
    -- An explanation runs nothing on a device.
    IF quota.max_device_seconds IS NOT NULL AND NEW.kind <> 'explain' THEN
        used := tensile.device_seconds_of(NEW.submitted_by);
    END IF;
    IF used >= quota.max_device_seconds THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('role "%s" has used %s seconds of device time, and may use %s',
                             NEW.owner, round(used::numeric, 1), quota.max_device_seconds),
            HINT = upper(left(more, 1)) || substr(more, 2);
    END IF;
    RETURN NEW;
END
$$;

COMMENT ON FUNCTION tensile.check_quota() IS 'Refuses a job that its submitter''s quota has no room for, and limits its memory.';

-- Row-level security refuses other roles' jobs only after this: what they have used is not to be learned here,
-- nor are they to be kept waiting.
CREATE OR REPLACE TRIGGER check_quota BEFORE INSERT ON tensile.jobs
    FOR EACH ROW WHEN (pg_has_role(current_user, NEW.submitted_by, 'MEMBER')) EXECUTE FUNCTION tensile.check_quota();
COMMENT ON TRIGGER check_quota ON tensile.jobs IS 'No job beyond its submitter''s quota.';

-- Jobs under way rest when the device time is used up, and nothing of them is lost; nothing of one that serves
-- is to be kept.
CREATE OR REPLACE FUNCTION tensile.pause_over_quota() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH over AS (
        SELECT r.role, r.used, (r.quota).max_device_seconds AS allowed
        FROM (SELECT u.role, tensile.device_seconds_of(u.role) AS used, tensile.quota_of(u.role) AS quota
              FROM (SELECT DISTINCT j.submitted_by AS role FROM tensile.jobs j
                    WHERE j.state IN ('queued', 'waiting', 'running') AND j.kind IN ('train', 'serve')
                      -- Most installations have no such quota, and pay nothing for it.
                      AND EXISTS (SELECT FROM tensile.quotas q WHERE q.max_device_seconds IS NOT NULL)) u) r
        WHERE r.used >= (r.quota).max_device_seconds),
    chosen AS (
        SELECT j.id, format('its role has used %s of %s seconds of device time',
                            round(o.used::numeric, 1), o.allowed) AS reason
        FROM tensile.jobs j JOIN over o ON o.role = j.submitted_by
        WHERE j.state IN ('queued', 'waiting', 'running') AND j.kind IN ('train', 'serve')
          AND NOT j.pause_requested AND NOT j.cancel_requested
        FOR NO KEY UPDATE OF j SKIP LOCKED),
    told AS (
        INSERT INTO tensile.job_events (job_id, kind, detail)
        SELECT id, 'over_quota', jsonb_build_object('reason', reason) FROM chosen),
    asked AS (
        UPDATE tensile.jobs j SET
            pause_requested = j.kind = 'train', pause_reason = c.reason, cancel_requested = j.kind = 'serve'
        FROM chosen c WHERE j.id = c.id RETURNING j.id)
    SELECT count(*) FROM asked
$$;

COMMENT ON FUNCTION tensile.pause_over_quota() IS 'Lets training jobs rest, and ends serving ones, whose role has used up its device time; returns how many. Workers call it.';

-- Rows that wait to be predicted, and answers that nobody has read yet.  Whoever may use a model may write requests
-- himself, past tensile_predict: they are not to fill the table, nor the way of the other roles' rows.
CREATE OR REPLACE FUNCTION tensile.check_quota_of_rows() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '5s'
AS $$
DECLARE
    quota constant tensile.quotas := tensile.quota_of(NEW.requested_by);
    name constant text := (SELECT r.rolname FROM pg_roles r WHERE r.oid = NEW.requested_by);
    waiting bigint;
BEGIN
    IF quota.max_serving_requests IS NULL THEN
        RETURN NEW;
    END IF;
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE invalid_parameter_value USING
            MESSAGE = format('a transaction with one snapshot cannot see how much of its quota the role "%s"'
                             ' has used', name),
            HINT = 'Ask by tensile_predict, which works in any transaction.';
    END IF;
    BEGIN
        PERFORM tensile.lock_quota(NEW.requested_by, 'rows');
    EXCEPTION WHEN lock_not_available THEN
        RAISE lock_not_available USING
            MESSAGE = format('another transaction of role "%s" has asked for rows and has not ended', name),
            HINT = 'COMMIT it first: its rows count towards the quota, or do not.';
    END;
    SELECT count(*) INTO waiting FROM tensile.serving_requests r WHERE r.requested_by = NEW.requested_by;
    IF waiting >= quota.max_serving_requests AND tensile.delete_abandoned_requests() > 0 THEN
        -- Sessions that are gone wait for nothing, and no worker may be there that cleans up after them.
        SELECT count(*) INTO waiting FROM tensile.serving_requests r WHERE r.requested_by = NEW.requested_by;
    END IF;
    IF waiting >= quota.max_serving_requests THEN
        RAISE configuration_limit_exceeded USING
            MESSAGE = format('role "%s" waits for the predictions of %s rows, and may for at most %s at a time',
                             name, waiting, quota.max_serving_requests),
            HINT = format('Ask for fewer at a time, or predict a table: tensile_predict(model, source); a member of'
                          ' tensile_admin can raise the quota: tensile_set_quota(%L, ...).', name);
    END IF;
    RETURN NEW;
END
$$;

COMMENT ON FUNCTION tensile.check_quota_of_rows() IS 'Refuses a row to be predicted for which its role''s quota has no room.';

CREATE OR REPLACE TRIGGER check_quota_of_rows BEFORE INSERT ON tensile.serving_requests
    FOR EACH ROW WHEN (pg_has_role(current_user, NEW.requested_by, 'MEMBER'))
    EXECUTE FUNCTION tensile.check_quota_of_rows();
COMMENT ON TRIGGER check_quota_of_rows ON tensile.serving_requests IS 'No more rows wait at a time than their role may ask for.';
