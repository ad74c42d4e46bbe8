-- tensile_train waits inside the caller's transaction for a job that others must see: the job is inserted
-- over a second connection, from the server to itself, which commits at once.
--
-- That connection belongs to the installing superuser, yet starts as the caller (`-c role=`), so that the
-- rights and row-level security of the caller decide.  Who that is comes from the session, not from an
-- argument: inside SECURITY DEFINER current_user is the owner, but the setting `role` and session_user are
-- still the caller's, and only the server's own checks can change them.
CREATE OR REPLACE FUNCTION tensile.caller() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END $$;

COMMENT ON FUNCTION tensile.caller() IS 'The role that the session acts as, also within SECURITY DEFINER functions.';

-- In PL/pgSQL, which keeps its plans: every row that is predicted by itself comes by here.
CREATE OR REPLACE FUNCTION tensile.dblink_schema() RETURNS name
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
            WHERE e.extname = 'dblink');
END
$$;

COMMENT ON FUNCTION tensile.dblink_schema() IS 'Where dblink is installed.';

CREATE OR REPLACE FUNCTION tensile.connect_as_caller(name text, settings text[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    -- The server splits options at white space, which a backslash protects.
    options text := (SELECT string_agg('-c ' || regexp_replace(setting, '([\s\\])', '\\\1', 'g'), ' ')
                     FROM unnest(ARRAY['role=' || tensile.caller(), 'search_path=pg_catalog',
                                       'default_transaction_read_only=off', 'statement_timeout=30s',
                                       'application_name=tensile_db'] || settings) setting);
    configured text := (SELECT value FROM tensile.settings s WHERE s.name = 'loopback');
    directory text := trim(split_part(current_setting('unix_socket_directories'), ',', 1), ' "');
    host text := CASE directory WHEN '' THEN 'localhost' ELSE directory END;
    -- Peer authentication wants the server's own user, libpq's default; trust wants any role that exists.
    logins text[] := CASE WHEN configured IS NULL THEN ARRAY['', current_user::text] ELSE ARRAY[''] END;
    login text;
    conninfo text;
    refusal text;
BEGIN
    FOREACH login IN ARRAY logins LOOP
        conninfo := concat_ws(' ',
            coalesce(configured, format('host=%s port=%s', tensile.quote_conninfo(host), current_setting('port'))),
            'user=' || tensile.quote_conninfo(nullif(login, '')),
            'connect_timeout=10',
            'dbname=' || tensile.quote_conninfo(current_database()),
            'options=' || tensile.quote_conninfo(options));
        BEGIN
            EXECUTE format('SELECT %I.dblink_connect_u($1, $2)', tensile.dblink_schema()) USING name, conninfo;
            RETURN;
        EXCEPTION WHEN sqlclient_unable_to_establish_sqlconnection THEN
            GET STACKED DIAGNOSTICS refusal = PG_EXCEPTION_DETAIL;
        END;
    END LOOP;
    RAISE sqlclient_unable_to_establish_sqlconnection USING
        MESSAGE = 'the server cannot connect to itself: ' || refusal,
        HINT = 'Use tensile_submit, COMMIT, then tensile_wait; or have an administrator run'
               ' "tensile-db install" with --loopback and a connection string that works on the server.';
END
$$;

COMMENT ON FUNCTION tensile.connect_as_caller(text, text[]) IS 'Opens a connection of this name from the server to itself, as the caller. For the functions that use one alone.';

CREATE OR REPLACE FUNCTION tensile.over_connection(name text, statement text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer text;
BEGIN
    EXECUTE format('SELECT answer FROM %I.dblink($1, $2) AS t(answer text)', tensile.dblink_schema())
        INTO answer USING name, statement;
    RETURN answer;
EXCEPTION WHEN OTHERS OR query_canceled THEN
    -- Its answer may be still to come, and is not to be taken for the next one's.
    EXECUTE format('SELECT %I.dblink_disconnect($1)', tensile.dblink_schema()) USING name;
    RAISE;
END
$$;

COMMENT ON FUNCTION tensile.over_connection(text, text) IS 'Runs a statement on an open connection, which is closed where that fails. For the functions that use one alone.';

CREATE OR REPLACE FUNCTION tensile.as_caller(statement text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dblink_schema constant name := tensile.dblink_schema();
    answer text;
    left_open boolean;
BEGIN
    -- A call that was cancelled at the wrong moment could not close its connection.
    EXECUTE format('SELECT ''tensile_db'' = ANY (%I.dblink_get_connections())', dblink_schema) INTO left_open;
    IF left_open THEN
        EXECUTE format('SELECT %I.dblink_disconnect($1)', dblink_schema) USING 'tensile_db';
    END IF;
    PERFORM tensile.connect_as_caller('tensile_db');
    answer := tensile.over_connection('tensile_db', statement);
    EXECUTE format('SELECT %I.dblink_disconnect($1)', dblink_schema) USING 'tensile_db';
    RETURN answer;
END
$$;

COMMENT ON FUNCTION tensile.as_caller(text) IS 'Runs a statement as the caller in a transaction of its own. For the functions below alone.';

CREATE OR REPLACE FUNCTION tensile.quote_conninfo(value text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$ SELECT '''' || regexp_replace($1, '([''\\])', '\\\1', 'g') || '''' $$;

COMMENT ON FUNCTION tensile.quote_conninfo(text) IS 'Quotes a value for a libpq connection string.';

CREATE OR REPLACE FUNCTION tensile.insert_job_visibly(request jsonb) RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.as_caller(format('SELECT tensile.insert_job(%L::jsonb)', $1 || jsonb_build_object(
        'client_pid', pid, 'client_started_at', backend_start)))::bigint
    FROM pg_stat_get_activity(pg_backend_pid())
$$;

COMMENT ON FUNCTION tensile.insert_job_visibly(jsonb) IS 'tensile.insert_job, committed at once, of a job that ends with this session.';

CREATE OR REPLACE FUNCTION tensile.request_cancel_visibly(job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.as_caller(format('SELECT tensile.request_cancel(%s)', $1))::boolean $$;

COMMENT ON FUNCTION tensile.request_cancel_visibly(bigint) IS 'tensile.request_cancel, committed at once.';

CREATE OR REPLACE FUNCTION tensile.job_status_now(job_id bigint) RETURNS jsonb
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.as_caller(format('SELECT tensile.job_status(%s)', $1))::jsonb $$;

COMMENT ON FUNCTION tensile.job_status_now(bigint) IS 'tensile.job_status, where this transaction''s snapshot is older.';
