-- One row's prediction, in the select list of any query: a row of tensile.serving_requests, written over a
-- connection from the server to itself (loopback_kept.sql), which a worker reads, answers, and the session takes
-- away again.

-- What runs at the connection's other end, as the caller: row-level security says whose models there are.
CREATE OR REPLACE FUNCTION tensile.insert_serving_request(
    model_id bigint, form text, wants_probabilities boolean, features bytea, client_pid integer,
    client_started_at timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO tensile.serving_requests (
        model_id, requested_by, client_pid, client_started_at, form, wants_probabilities, features)
    SELECT m.id, r.oid, $5, $6, $2, $3, $4 FROM tensile.models m, pg_roles r
    WHERE m.id = $1 AND r.rolname = current_user
    RETURNING id
$$;

COMMENT ON FUNCTION tensile.insert_serving_request(bigint, text, boolean, bytea, integer, timestamptz) IS 'Asks for one row''s prediction, as the current role; NULL where there is no such model for it.';

CREATE OR REPLACE FUNCTION tensile.ask_serving_again(request bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    WITH asked AS (
        UPDATE tensile.serving_requests SET asked = asked + 1 WHERE id = $1 AND NOT answered RETURNING id)
    SELECT EXISTS (SELECT FROM asked)
$$;

COMMENT ON FUNCTION tensile.ask_serving_again(bigint) IS 'Tells the workers of a request once more, and begins to serve its model where nobody does.';

-- As the owner: a right to delete would be one to lock the whole table, which all sessions and workers need.
CREATE OR REPLACE FUNCTION tensile.delete_serving_request(signature text, request bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.signer($1);
    WITH gone AS (
        DELETE FROM tensile.serving_requests
        WHERE id = $2 AND requested_by = (SELECT r.oid FROM pg_roles r WHERE r.rolname = tensile.caller())
        RETURNING id)
    SELECT EXISTS (SELECT FROM gone)
$$;

COMMENT ON FUNCTION tensile.delete_serving_request(text, bigint) IS 'Takes a request away, answered or not.';

CREATE OR REPLACE FUNCTION tensile.forget_serving(
    signature text, client_pid integer, client_started_at timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.signer($1);
    WITH gone AS (
        DELETE FROM tensile.serving_requests r
        WHERE r.client_pid = $2 AND r.client_started_at = $3
          AND r.requested_by = (SELECT o.oid FROM pg_roles o WHERE o.rolname = tensile.caller())
        RETURNING r.id)
    SELECT count(*) FROM gone
$$;

COMMENT ON FUNCTION tensile.forget_serving(text, integer, timestamptz) IS 'Takes away the current role''s requests of a session; returns how many.';

CREATE OR REPLACE FUNCTION tensile.serving_answer(request bigint) RETURNS jsonb
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT jsonb_build_object(
        'answered', r.answered, 'prediction', r.prediction, 'probabilities', r.probabilities,
        'error_sqlstate', r.error_sqlstate, 'error_message', r.error_message, 'error_hint', r.error_hint)
    FROM tensile.serving_requests r WHERE r.id = $1
$$;

COMMENT ON FUNCTION tensile.serving_answer(bigint) IS 'The answer to a request as it is now; NULL where there is no such request.';

-- The same from this end.
CREATE OR REPLACE FUNCTION tensile.request_serving_visibly(
    signature text, model_id bigint, form text, wants_probabilities boolean, features bytea) RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.over_serving_connection($1, format(
        'SELECT tensile.insert_serving_request(%s, %L, %L, %L, %s, %L)', $2, $3, $4, $5, pid,
        -- The same in every DateStyle.
        to_jsonb(backend_start) #>> '{}'))::bigint
    FROM pg_stat_get_activity(pg_backend_pid())
$$;

COMMENT ON FUNCTION tensile.request_serving_visibly(text, bigint, text, boolean, bytea) IS 'tensile.insert_serving_request, committed at once.';

CREATE OR REPLACE FUNCTION tensile.ask_serving_again_visibly(signature text, request bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.over_serving_connection($1, format('SELECT tensile.ask_serving_again(%s)', $2))::boolean
$$;

COMMENT ON FUNCTION tensile.ask_serving_again_visibly(text, bigint) IS 'tensile.ask_serving_again, committed at once.';

CREATE OR REPLACE FUNCTION tensile.delete_serving_request_visibly(signature text, request bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.over_serving_connection(
        $1, format('SELECT tensile.delete_serving_request(tensile.sign(), %s)', $2))::boolean
$$;

COMMENT ON FUNCTION tensile.delete_serving_request_visibly(text, bigint) IS 'tensile.delete_serving_request, committed at once.';

CREATE OR REPLACE FUNCTION tensile.forget_serving_visibly(signature text) RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.over_serving_connection($1, format('SELECT tensile.forget_serving(tensile.sign(), %s, %L)', pid,
                                                      to_jsonb(backend_start) #>> '{}'))::bigint
    FROM pg_stat_get_activity(pg_backend_pid())
$$;

COMMENT ON FUNCTION tensile.forget_serving_visibly(text) IS 'tensile.forget_serving of this session, committed at once.';

CREATE OR REPLACE FUNCTION tensile.serving_answer_now(signature text, request bigint) RETURNS jsonb
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.over_serving_connection($1, format('SELECT tensile.serving_answer(%s)', $2))::jsonb $$;

COMMENT ON FUNCTION tensile.serving_answer_now(text, bigint) IS 'tensile.serving_answer, where this transaction''s snapshot is older.';

-- Waits in steps of a millisecond at first (less than one is rounded up, and one to two), for that is what a
-- small network takes, and of a fiftieth of the time waited later, up to a twentieth of a second.
CREATE OR REPLACE FUNCTION tensile.await_serving(request bigint) RETURNS jsonb
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    sees_others constant boolean :=
        current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
    begun constant timestamptz := clock_timestamp();
    asked_at timestamptz := begun;
    answer jsonb;
BEGIN
    LOOP
        IF sees_others THEN
            answer := tensile.serving_answer(request);
        ELSE
            answer := tensile.serving_answer_now(tensile.sign(), request);
        END IF;
        EXIT WHEN answer IS NULL OR (answer -> 'answered')::boolean;
        -- Notifications may be lost, and the job that serves may have just ended.
        IF clock_timestamp() > asked_at + interval '1 second' THEN
            PERFORM tensile.require_worker();
            PERFORM tensile.ask_serving_again_visibly(tensile.sign(), request);
            asked_at := clock_timestamp();
        END IF;
        PERFORM pg_sleep(least(0.05, greatest(0.0005, extract(epoch FROM clock_timestamp() - begun) / 50)));
    END LOOP;
    RETURN answer;
END
$$;

COMMENT ON FUNCTION tensile.await_serving(bigint) IS 'Waits for the answer to a request; NULL where somebody took the request away.';

CREATE OR REPLACE FUNCTION tensile.has_worker() RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT EXISTS (SELECT FROM tensile.workers w WHERE w.state IN ('starting', 'ready')
                   AND w.heartbeat_at > clock_timestamp() - make_interval(secs => greatest(w.lease_s, 30)))
$$;

COMMENT ON FUNCTION tensile.has_worker() IS 'Whether a worker has been heard of lately.';

CREATE OR REPLACE FUNCTION tensile.has_worker_now(signature text) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.over_serving_connection($1, 'SELECT tensile.has_worker()')::boolean $$;

COMMENT ON FUNCTION tensile.has_worker_now(text) IS 'tensile.has_worker, where this transaction''s snapshot is older.';

CREATE OR REPLACE FUNCTION tensile.require_worker() RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A snapshot that is as old as a heartbeat may be tells nothing of who is alive now.
    IF NOT tensile.has_worker() AND (current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
                                     OR NOT tensile.has_worker_now(tensile.sign())) THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'no worker is running', HINT = 'Start one: tensile-db worker --dsn ...';
    END IF;
END
$$;

COMMENT ON FUNCTION tensile.require_worker() IS 'Refuses where no worker has been heard of lately.';

CREATE OR REPLACE FUNCTION tensile.with_seconds(fields jsonb, columns jsonb, encodings jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place record;
BEGIN
    FOR place IN
        SELECT e.number - 1 AS number, columns ->> (e.number - 1)::integer AS name, e.encoding ->> 'time' AS type
        FROM jsonb_array_elements(CASE jsonb_typeof(encodings) WHEN 'array' THEN encodings ELSE '[]' END)
             WITH ORDINALITY e (encoding, number)
        WHERE e.encoding ->> 'time' <> ''
    LOOP
        -- What is no text is seconds already, or for the worker to refuse.
        IF jsonb_typeof(fields) = 'object' AND jsonb_typeof(fields -> place.name) = 'string' THEN
            fields := jsonb_set(fields, ARRAY[place.name], tensile.seconds_of(fields ->> place.name, place.type));
        ELSIF jsonb_typeof(fields) = 'array' AND jsonb_typeof(fields -> place.number::integer) = 'string' THEN
            fields := jsonb_set(fields, ARRAY[place.number::text],
                                tensile.seconds_of(fields ->> place.number::integer, place.type));
        END IF;
    END LOOP;
    RETURN fields;
END
$$;

COMMENT ON FUNCTION tensile.with_seconds(jsonb, jsonb, jsonb) IS 'A row, by name or by place, with seconds for the times that a model learned from.';

CREATE OR REPLACE FUNCTION tensile.seconds_of(value text, type text) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
-- With all digits, whatever the session's are.
SET extra_float_digits = 1
AS $$
    -- NaN counts as NULL.
    SELECT to_jsonb(CASE WHEN value = 'NaN' THEN 'NaN'::double precision ELSE CASE type WHEN 'date' THEN date_part('epoch', value::date)
                              WHEN 'time' THEN date_part('epoch', value::time)
                              WHEN 'timetz' THEN date_part('epoch', value::timetz)
                              WHEN 'timestamp' THEN date_part('epoch', value::timestamp)
                              WHEN 'timestamptz' THEN date_part('epoch', value::timestamptz)
                              WHEN 'interval' THEN date_part('epoch', value::interval) END END)
$$;

COMMENT ON FUNCTION tensile.seconds_of(text, text) IS 'What a time of a type, as the session writes it, is in seconds, since 1970 or midnight.';

CREATE OR REPLACE FUNCTION tensile.predict_row(
    model text, version integer, form text, bytes bytea, fields jsonb, wants_probabilities boolean,
    OUT prediction text, OUT probabilities jsonb)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET row_security = on
AS $$
DECLARE
    found record;
    names text[];
    request bigint;
    answer jsonb;
BEGIN
    IF bytes IS NULL AND fields IS NULL THEN
        -- Of an unknown number a model that takes NULLs tells something, others nothing.
        IF form <> 'number' OR NOT EXISTS (SELECT FROM tensile.models m WHERE m.name = model
                                           AND (m.features ->> 'takes_nulls')::boolean) THEN
            RETURN;
        END IF;
        bytes := array_send('{NULL}'::double precision[]);
    END IF;
    IF form = 'number' THEN
        form := 'array';
    END IF;
    IF current_user <> tensile.caller() THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('role "%s" cannot predict while it acts as role "%s", in a SECURITY DEFINER function or'
                             ' a materialized view of that role', tensile.caller(), current_user),
            HINT = 'Predict outside of the function; have the view''s owner refresh it.';
    END IF;
    SELECT m.id, m.features -> 'columns' AS columns, m.features -> 'encodings' AS encodings INTO found
    FROM tensile.models m
    WHERE m.name = model AND m.owned_by = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
      AND (predict_row.version IS NULL OR m.version = predict_row.version)
    ORDER BY m.pinned DESC, m.version DESC LIMIT 1;
    IF found.id IS NULL THEN
        -- An administrator's reach is all models; or there is none, with the nearest name.
        SELECT (f ->> 'id')::bigint AS id, f -> 'columns' AS columns, f -> 'encodings' AS encodings INTO found
        FROM tensile.call('find_model', jsonb_build_object('model', model, 'version', version)) f;
    END IF;
    PERFORM tensile.require_worker();
    IF form = 'unnamed' THEN
        names := ARRAY(SELECT 'f' || place FROM generate_series(1, (SELECT count(*) FROM jsonb_object_keys(fields))) place);
        IF found.columns <> to_jsonb(names) AND found.columns @> to_jsonb(names) AND to_jsonb(names) @> found.columns THEN
            -- By name it is another row than by place, and nothing tells which is meant.
            RAISE ambiguous_column USING
                MESSAGE = format('the row may be ROW(...), in the order of the model''s columns, or a subquery''s,'
                                 ' whose columns have their names: %s', array_to_string(names, ', ')),
                HINT = format('Give jsonb_build_array(...) in the order %s, or to_jsonb(row) to go by the names.',
                              (SELECT string_agg(c, ', ') FROM jsonb_array_elements_text(found.columns) c));
        END IF;
        fields := (SELECT coalesce(jsonb_agg(fields -> name ORDER BY place), '[]')
                   FROM unnest(names) WITH ORDINALITY n (name, place));
        form := 'object';
    END IF;
    IF fields IS NOT NULL THEN
        -- What the model does not look at is nobody's business, and may be large.
        IF jsonb_typeof(fields) = 'object' AND NOT EXISTS (
            SELECT FROM jsonb_array_elements_text(found.columns) c WHERE NOT fields ? c)
        THEN
            fields := (SELECT jsonb_object_agg(c, fields -> c) FROM jsonb_array_elements_text(found.columns) c);
        END IF;
        bytes := convert_to(tensile.with_seconds(fields, found.columns, found.encodings)::text, 'UTF8');
    END IF;
    -- A worker refuses it, too; here it need not be written first.
    IF octet_length(bytes) > 128 * 1024 * 1024 THEN
        RAISE program_limit_exceeded USING
            MESSAGE = format('the row has %s of features, and a row by itself may have 128.0 MiB',
                             tensile.format_nbytes(octet_length(bytes))),
            HINT = 'Predict it in a table: tensile_predict(model, source).';
    END IF;
    BEGIN
        request := tensile.request_serving_visibly(tensile.sign(), found.id, form, wants_probabilities, bytes);
        IF request IS NULL THEN
            -- Dropped since it was found.
            RAISE undefined_object USING
                MESSAGE = format('the model "%s" is no more', model),
                HINT = 'tensile_models() lists those that are.';
        END IF;
        answer := tensile.await_serving(request);
        PERFORM tensile.delete_serving_request_visibly(tensile.sign(), request);
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        -- It may have been written without this session having learned its number.
        BEGIN
            PERFORM tensile.forget_serving_visibly(tensile.sign());
        EXCEPTION WHEN OTHERS OR query_canceled THEN
            -- What is left is taken away when this session is gone; what went wrong first is to be told.
            NULL;
        END;
        RAISE;
    END;
    IF answer IS NULL THEN
        RAISE undefined_object USING
            MESSAGE = format('the request for a prediction of the model "%s" was taken away', model),
            HINT = 'The server was restarted, or an administrator has emptied tensile.serving_requests: ask again.';
    ELSIF answer ->> 'error_sqlstate' IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = answer ->> 'error_sqlstate', MESSAGE = answer ->> 'error_message',
            HINT = coalesce(answer ->> 'error_hint', '');
    END IF;
    prediction := answer ->> 'prediction';
    probabilities := answer -> 'probabilities';
END
$$;

COMMENT ON FUNCTION tensile.predict_row(text, integer, text, bytea, jsonb, boolean) IS 'Has a worker predict one row, whose features are bytes or, else, fields; form: bytes, number and array, as array_send writes them, object, or unnamed: an object with f1, f2, ... by place.';
