-- A connection from the server to itself that stays open, for the rows that a session has predicted one by one.
--
-- It belongs to the installing superuser, and acts as the caller only because nobody but these functions can speak
-- to it.  So it is kept only where no ordinary role may call dblink at all, for code of any role may come to run in
-- a session; else each statement has one of its own, and one that is found is not ours to use.  It ends when it is
-- not used for a while, for it is one of max_connections, and a superuser's, to which those belong that are kept
-- for emergencies.
CREATE OR REPLACE FUNCTION tensile.can_be_reached() RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM pg_extension e
        JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
            AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
        JOIN pg_proc p ON p.oid = d.objid
        CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE e.extname = 'dblink' AND r.rolsuper IS NOT TRUE);
END
$$;

COMMENT ON FUNCTION tensile.can_be_reached() IS 'Whether an ordinary role may call any of dblink''s functions. For the function below alone.';

CREATE OR REPLACE FUNCTION tensile.over_serving_connection(signature text, statement text) RETURNS text
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
-- As of the loopback's way, nobody is told the connection's name.
SET client_min_messages = warning
AS $$
DECLARE
    -- Of this role and no other: whom the session acts as may change.
    prefix constant text := format('tensile_db %s ', quote_ident(tensile.signer(signature))::regrole::oid);
    can_be_reached constant boolean := tensile.can_be_reached();
    own text;
    found text;
BEGIN
    FOR found IN SELECT n FROM unnest(tensile.link_names()) n WHERE starts_with(n, 'tensile_db ') LOOP
        IF own IS NULL AND starts_with(found, prefix) AND NOT can_be_reached THEN
            own := found;
        ELSE
            PERFORM tensile.link_close(found);
        END IF;
    END LOOP;
    IF own IS NOT NULL THEN
        BEGIN
            RETURN tensile.over_connection(own, statement);
        EXCEPTION
            -- It was ended meanwhile.  What was asked of it is asked again: a request that was written all the same
            -- is answered in vain.  After any other error it is closed as well, whose context tells its name.
            WHEN connection_exception OR connection_failure OR connection_does_not_exist OR admin_shutdown
              OR sqlclient_unable_to_establish_sqlconnection OR idle_session_timeout THEN NULL;
        END;
    END IF;
    RETURN tensile.over_loopback(
        statement, ARRAY['synchronous_commit=off', 'idle_session_timeout=60s', 'lock_timeout=10s'],
        CASE WHEN NOT can_be_reached THEN prefix || gen_random_uuid() END);
END
$$;

COMMENT ON FUNCTION tensile.over_serving_connection(text, text) IS 'Runs a statement as the caller, who signed, in a transaction of its own, on a connection that is kept. For the functions that use one alone.';
