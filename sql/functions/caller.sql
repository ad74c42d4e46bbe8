-- Whose call it is.  What runs as the installing superuser has to ask, for it does what its caller may.
--
-- Inside SECURITY DEFINER current_user is the owner.  The setting `role` and session_user tell as whom the session
-- acts, and only the server's own checks can change them; but whoever calls need not act for the session.  The
-- server runs an index's functions and a materialized view's query as their owner whoever the session is (ANALYZE,
-- REINDEX, autovacuum), and a SECURITY DEFINER function runs as its own.  So a call is signed by its caller,
-- outside, where current_user is the caller, and the signature given along.
CREATE OR REPLACE FUNCTION tensile.caller() RETURNS text
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE current_setting('role') WHEN 'none' THEN session_user::text ELSE current_setting('role') END $$;

COMMENT ON FUNCTION tensile.caller() IS 'The role that the session acts as, also within SECURITY DEFINER functions.';

-- In GD, which no SQL and no trusted language reaches.  It is good for one call, and cannot be guessed: one that
-- was left over, for its call failed before it was looked at, serves nobody.
CREATE OR REPLACE FUNCTION tensile.sign() RETURNS text
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
if "plan" not in SD:
    import secrets
    SD["plan"], SD["secrets"] = plpy.prepare("SELECT current_user::text AS role"), secrets
signature = SD["secrets"].token_hex(16)
GD["tensile signature"] = (signature, SD["plan"].execute()[0]["role"])
return signature
$python$;

COMMENT ON FUNCTION tensile.sign() IS 'Signs the next call of a function that wants a signature, as the current role.';

CREATE OR REPLACE FUNCTION tensile.unsign(signature text) RETURNS text
LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $python$
known, role = GD.pop("tensile signature", (None, None))
return role if known is not None and known == signature else None
$python$;

COMMENT ON FUNCTION tensile.unsign(text) IS 'The role that signed last; NULL where it is another signature. For tensile.signer alone.';

CREATE OR REPLACE FUNCTION tensile.signer(signature text) RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    role constant text := tensile.unsign(signature);
    caller constant text := tensile.caller();
BEGIN
    IF role IS NULL THEN
        RAISE insufficient_privilege USING
            MESSAGE = 'the call is not signed', HINT = 'Call the functions tensile_*, which sign what they call.';
    ELSIF role <> caller THEN
        RAISE insufficient_privilege USING
            MESSAGE = format('role "%s" cannot do that while it acts as role "%s", in a SECURITY DEFINER function,'
                             ' an index or a materialized view of that role', caller, role),
            HINT = 'Do it outside of that.';
    ELSIF NOT tensile.is_at_home() THEN
        -- What asks for a signature acts past row-level security, by numbers that may be other roles' here.
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'the catalog of tensile_db comes from another database, where roles and tables may have other numbers',
            HINT = 'As a superuser: SELECT * FROM tensile_after_restore(); after pg_upgrade: SELECT * FROM'
                   ' tensile_after_restore(numbers_kept => true).';
    END IF;
    RETURN role;
END
$$;

COMMENT ON FUNCTION tensile.signer(text) IS 'The role that signed a call, which is the one that the session acts as; else the call is refused. For the functions that want a signature alone.';
