-- What becomes of a job that no worker holds: cancelled, paused or queued, as its owner asks.  So it is with
-- every row that is written, by whom ever: asking of a queued job takes effect at once, and a worker that lets
-- go of a job need not know what was asked for meanwhile.  Column rights keep users from saying so themselves,
-- a trigger needs none.
CREATE OR REPLACE FUNCTION tensile.settle_unheld() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A request to cancel stands.
    NEW.cancel_requested := OLD.cancel_requested OR NEW.cancel_requested;
    IF NOT NEW.pause_requested THEN
        NEW.pause_reason := NULL;
    END IF;
    IF NEW.state NOT IN ('queued', 'paused') THEN
        RETURN NEW;
    END IF;
    IF NEW.cancel_requested THEN
        NEW.state := 'cancelled';
        NEW.phase := 'done';
        NEW.error_sqlstate := '57014';
        NEW.error_message := format('job %s was cancelled', NEW.id);
        NEW.finished_at := clock_timestamp();
    ELSIF NEW.pause_requested THEN
        NEW.state := 'paused';
        NEW.phase := 'paused';
    ELSE
        NEW.state := 'queued';
        NEW.phase := 'queued';
    END IF;
    IF NEW.state <> OLD.state THEN
        NEW.updated_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;

COMMENT ON FUNCTION tensile.settle_unheld() IS 'Makes of a job that no worker holds what its owner asks for.';

CREATE OR REPLACE TRIGGER settle_unheld BEFORE UPDATE OF state, cancel_requested, pause_requested ON tensile.jobs
    FOR EACH ROW EXECUTE FUNCTION tensile.settle_unheld();
COMMENT ON TRIGGER settle_unheld ON tensile.jobs IS 'A job that no worker holds is cancelled, paused or queued as its owner asks.';

-- A paused job always has a checkpoint of all its weights, and its owner has no right to delete one.
CREATE OR REPLACE FUNCTION tensile.forget_checkpoints() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM tensile.checkpoints WHERE job_id = NEW.id;
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.forget_checkpoints() IS 'Removes the checkpoints of a job that failed or was cancelled.';

CREATE OR REPLACE TRIGGER forget_checkpoints AFTER UPDATE ON tensile.jobs
    FOR EACH ROW WHEN (NEW.state IN ('failed', 'cancelled') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION tensile.forget_checkpoints();
COMMENT ON TRIGGER forget_checkpoints ON tensile.jobs IS 'Nobody goes on with a job that failed or was cancelled.';

CREATE OR REPLACE FUNCTION tensile.notify_workers() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pg_notify('tensile_jobs', NEW.id::text);
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.notify_workers() IS 'Wakes the workers: a job is new, or something is asked of it.';

-- Whoever passes the others is to have a right to it.  Theirs alone is the default, or less.
CREATE OR REPLACE FUNCTION tensile.check_priority() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.priority > 0 AND NOT pg_has_role(current_user, 'tensile_priority', 'USAGE')
       -- What a job has was given to it by someone who had the right.
       AND NOT (TG_OP = 'UPDATE' AND NEW.priority <= OLD.priority)
       -- So was what a search has, whose trials a worker begins.  Users cannot make a job a trial.
       AND NOT (NEW.search_id IS NOT NULL AND NEW.priority <= coalesce(
           (SELECT s.priority FROM tensile.jobs s WHERE s.id = NEW.search_id), 0)) THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('role "%s" may not raise the priority of a job above 0, got %s',
                             current_user, NEW.priority),
            HINT = format('Leave it at 0, or ask an administrator: GRANT tensile_priority TO %I.', current_user);
    END IF;
    RETURN NEW;
END
$$;

COMMENT ON FUNCTION tensile.check_priority() IS 'Refuses a priority above 0 to whom has no right to it.';

CREATE OR REPLACE TRIGGER check_priority BEFORE INSERT OR UPDATE OF priority ON tensile.jobs
    FOR EACH ROW EXECUTE FUNCTION tensile.check_priority();
COMMENT ON TRIGGER check_priority ON tensile.jobs IS 'Only members of tensile_priority raise a priority above 0.';

-- Two triggers, for a condition on OLD rules out INSERT.
CREATE OR REPLACE TRIGGER notify_submitted AFTER INSERT ON tensile.jobs
    FOR EACH ROW EXECUTE FUNCTION tensile.notify_workers();
COMMENT ON TRIGGER notify_submitted ON tensile.jobs IS 'Workers learn of a new job at COMMIT.';
CREATE OR REPLACE TRIGGER notify_asked AFTER UPDATE OF cancel_requested, pause_requested, priority ON tensile.jobs
    FOR EACH ROW WHEN ((NEW.cancel_requested, NEW.pause_requested, NEW.priority)
                       IS DISTINCT FROM (OLD.cancel_requested, OLD.pause_requested, OLD.priority))
    EXECUTE FUNCTION tensile.notify_workers();
COMMENT ON TRIGGER notify_asked ON tensile.jobs IS 'Workers learn at COMMIT of what is asked of a job.';

-- The trials of a search end with it, whatever ended it, and also where no worker is alive to say so.
CREATE OR REPLACE FUNCTION tensile.cancel_trials() RETURNS trigger
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE tensile.jobs SET cancel_requested = true
    WHERE search_id = NEW.id AND NOT cancel_requested AND state IN ('queued', 'waiting', 'running', 'paused');
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.cancel_trials() IS 'Asks for the end of a search''s trials.';

CREATE OR REPLACE TRIGGER cancel_trials AFTER UPDATE ON tensile.jobs
    FOR EACH ROW WHEN (NEW.kind = 'search'
                       AND (NEW.cancel_requested AND NOT OLD.cancel_requested
                            OR NEW.state IN ('succeeded', 'failed', 'cancelled') AND NEW.state <> OLD.state))
    EXECUTE FUNCTION tensile.cancel_trials();
COMMENT ON TRIGGER cancel_trials ON tensile.jobs IS 'The trials of a search end with it.';
