-- Who serves a model: a job of kind serve, the model's owner's, of which there is one at most.  A request
-- begins it, whoever asks; that its role may use the model was checked when the request was inserted.
CREATE OR REPLACE FUNCTION tensile.serve_model() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM tensile.jobs j WHERE j.kind = 'serve' AND j.model_id = NEW.model_id
                   AND j.state IN ('queued', 'waiting', 'running')) THEN
        INSERT INTO tensile.jobs (kind, submitted_by, owner, architecture, source_oid, source_name, model,
                                  model_version, model_id)
        SELECT 'serve', m.owned_by, coalesce(r.rolname, m.owner), m.architecture, 0, '', m.name, m.version, m.id
        FROM tensile.models m LEFT JOIN pg_roles r ON r.oid = m.owned_by WHERE m.id = NEW.model_id
        ON CONFLICT DO NOTHING;
        -- It was deleted while this request was made, so that neither saw the other.
        IF NOT FOUND AND NOT EXISTS (SELECT FROM tensile.models m WHERE m.id = NEW.model_id) THEN
            UPDATE tensile.serving_requests SET
                answered = true, error_sqlstate = '42704', error_message = 'the model is no more',
                error_hint = 'tensile_models() lists those that are.'
            WHERE id = NEW.id AND NOT answered;
            RETURN NULL;
        END IF;
    END IF;
    -- No more than this, for whoever listens hears it.
    PERFORM pg_notify('tensile_serving', NEW.id || ' ' || NEW.model_id);
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.serve_model() IS 'Tells the workers of a request, and begins to serve its model where nobody does.';

CREATE OR REPLACE TRIGGER serve_model AFTER INSERT OR UPDATE OF asked ON tensile.serving_requests
    FOR EACH ROW EXECUTE FUNCTION tensile.serve_model();
COMMENT ON TRIGGER serve_model ON tensile.serving_requests IS 'A request is told of, and its model served.';

-- Not those that are locked: nobody waits for the role that asked, and its session asks again.
CREATE OR REPLACE FUNCTION tensile.answer_with_error(model_id bigint, sqlstate text, message text, hint text) RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE tensile.serving_requests SET answered = true, error_sqlstate = $2, error_message = $3, error_hint = $4
    WHERE id IN (SELECT r.id FROM tensile.serving_requests r WHERE r.model_id = $1 AND NOT r.answered
                 FOR NO KEY UPDATE SKIP LOCKED)
$$;

COMMENT ON FUNCTION tensile.answer_with_error(bigint, text, text, text) IS 'Answers all that is asked of a model with an error. For triggers.';

-- However the job ends without an answer, those who wait learn why.
CREATE OR REPLACE FUNCTION tensile.refuse_requests() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tensile.answer_with_error(
        NEW.model_id, coalesce(NEW.error_sqlstate, 'XX000'),
        coalesce(NEW.error_message, format('job %s, which served the model, %s', NEW.id, NEW.state)), NEW.error_hint);
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.refuse_requests() IS 'Answers what a serving job leaves unanswered with what ended it.';

CREATE OR REPLACE TRIGGER refuse_requests AFTER UPDATE ON tensile.jobs
    FOR EACH ROW WHEN (NEW.kind = 'serve' AND NEW.state IN ('failed', 'cancelled') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION tensile.refuse_requests();
COMMENT ON TRIGGER refuse_requests ON tensile.jobs IS 'Who waits for a model that cannot be served learns why.';

CREATE OR REPLACE FUNCTION tensile.end_serving() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tensile.answer_with_error(OLD.id, '42704', format('the model "%s" is no more', OLD.name),
                                      'tensile_models() lists those that are.');
    UPDATE tensile.jobs SET cancel_requested = true
    WHERE kind = 'serve' AND model_id = OLD.id AND NOT cancel_requested AND state IN ('queued', 'waiting', 'running');
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION tensile.end_serving() IS 'Ends the job that serves a model which is no more.';

CREATE OR REPLACE TRIGGER end_serving AFTER DELETE ON tensile.models
    FOR EACH ROW EXECUTE FUNCTION tensile.end_serving();
COMMENT ON TRIGGER end_serving ON tensile.models IS 'A model that is no more is not served.';

-- Sessions take their requests away, unless they end at the wrong moment.  The owner sees all processes, which
-- workers do not.
CREATE OR REPLACE FUNCTION tensile.delete_abandoned_requests() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH gone AS (
        DELETE FROM tensile.serving_requests WHERE id IN (
            SELECT r.id FROM tensile.serving_requests r
            WHERE NOT EXISTS (SELECT FROM pg_stat_get_activity(r.client_pid) a
                              WHERE a.backend_start = r.client_started_at)
            FOR UPDATE SKIP LOCKED)
        RETURNING id)
    SELECT count(*) FROM gone
$$;

COMMENT ON FUNCTION tensile.delete_abandoned_requests() IS 'Takes away requests whose session is gone; returns how many. Workers call it.';
