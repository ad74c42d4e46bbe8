-- tensile_train waits inside the caller's transaction for a job that others must see: the job is inserted
-- over a second connection, from the server to itself, which commits at once.
--
-- That connection belongs to the installing superuser, yet starts as the caller (`-c role=`), so that the
-- rights and row-level security of the caller decide (caller.sql).  It ends with its statement, however that ends,
-- and has no name: those that dblink keeps by name are there for all code of the session whose role may call dblink.

CREATE OR REPLACE FUNCTION tensile.quote_conninfo(value text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$ SELECT '''' || regexp_replace($1, '([''\\])', '\\\1', 'g') || '''' $$;

COMMENT ON FUNCTION tensile.quote_conninfo(text) IS 'Quotes a value for a libpq connection string.';

CREATE OR REPLACE FUNCTION tensile.over_connection(name text, statement text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN tensile.link_ask(name, statement);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    -- Its answer may be still to come, and is not to be taken for the next one's.
    PERFORM tensile.link_close(name);
    RAISE;
END
$$;

COMMENT ON FUNCTION tensile.over_connection(text, text) IS 'Runs a statement on an open connection, which is closed where that fails. For the functions that use one alone.';

-- The way there may hold a password, and settings that are anybody's have the client told what the server's log is:
-- what a statement is made of (debug_print_plan), or was called with (auto_explain).
CREATE OR REPLACE FUNCTION tensile.over_loopback(statement text, settings text[], kept_as text) RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
SET client_min_messages = warning
AS $$
DECLARE
    -- The server splits options at white space, which a backslash protects.
    options text := (SELECT string_agg('-c ' || regexp_replace(setting, '([\s\\])', '\\\1', 'g'), ' ')
                     FROM unnest(ARRAY['role=' || tensile.caller(), 'search_path=pg_catalog', 'row_security=on',
                                       'default_transaction_read_only=off',
                                       'default_transaction_isolation=read committed', 'statement_timeout=30s']
                                 || settings) setting);
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
            -- dblink takes what begins like the name of a connection for that: there is none of this name.
            'fallback_application_name=' || gen_random_uuid(),
            coalesce(configured, format('host=%s port=%s', tensile.quote_conninfo(host), current_setting('port'))),
            'user=' || tensile.quote_conninfo(nullif(login, '')),
            'application_name=tensile_db',
            'connect_timeout=10',
            'dbname=' || tensile.quote_conninfo(current_database()),
            'options=' || tensile.quote_conninfo(options));
        BEGIN
            IF kept_as IS NULL THEN
                RETURN tensile.link_ask(conninfo, statement);
            END IF;
            PERFORM tensile.link_open(kept_as, conninfo);
            RETURN tensile.over_connection(kept_as, statement);
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

COMMENT ON FUNCTION tensile.over_loopback(text, text[], text) IS 'Runs a statement on a new connection from the server to itself, as the caller; kept_as: a name by which it stays open, NULL: it ends. For the functions that use one alone.';

CREATE OR REPLACE FUNCTION tensile.as_caller(signature text, statement text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM tensile.signer(signature);
    RETURN tensile.over_loopback(statement, '{}'::text[], NULL::text);
END
$$;

COMMENT ON FUNCTION tensile.as_caller(text, text) IS 'Runs a statement as the caller, who signed, in a transaction of its own. For the functions below alone.';

CREATE OR REPLACE FUNCTION tensile.insert_job_visibly(signature text, request jsonb) RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.as_caller($1, format('SELECT tensile.insert_job(%L::jsonb)', $2 || jsonb_build_object(
        'client_pid', pid, 'client_started_at', backend_start)))::bigint
    FROM pg_stat_get_activity(pg_backend_pid())
$$;

COMMENT ON FUNCTION tensile.insert_job_visibly(text, jsonb) IS 'tensile.insert_job, committed at once, of a job that ends with this session.';

CREATE OR REPLACE FUNCTION tensile.request_cancel_visibly(signature text, job_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.as_caller($1, format('SELECT tensile.request_cancel(%s)', $2))::boolean $$;

COMMENT ON FUNCTION tensile.request_cancel_visibly(text, bigint) IS 'tensile.request_cancel, committed at once.';

CREATE OR REPLACE FUNCTION tensile.job_status_now(signature text, job_id bigint) RETURNS jsonb
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT tensile.as_caller($1, format('SELECT tensile.job_status(%s)', $2))::jsonb $$;

COMMENT ON FUNCTION tensile.job_status_now(text, bigint) IS 'tensile.job_status, where this transaction''s snapshot is older.';
