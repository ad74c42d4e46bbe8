-- How every function reaches tensile_db.udf.  An error comes back as a value and is raised here: raised in
-- PL/Python, it would be dressed up with an exception's name and a traceback.  With row_security off, which a
-- session may have for its dumps, the catalog would refuse to be read.
CREATE OR REPLACE FUNCTION tensile.run(operation text, arguments text) RETURNS text
LANGUAGE plpython3u VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET row_security = on
AS $python$
if "tensile @udf_digest@" not in GD:
    try:
        plpy.execute("SELECT tensile.load_udf()")
    except plpy.SPIError as error:
        if error.sqlstate != "57014": raise
        # Cancelled; what else tells of errors is not loaded yet.
        import json
        return json.dumps({"error": {"sqlstate": error.sqlstate, "message": str(error), "hint": ""}})
return GD["tensile @udf_digest@"].answer(plpy, operation, arguments)
$python$;

COMMENT ON FUNCTION tensile.run(text, text) IS 'Carries out an operation of tensile_db.udf; JSON in, JSON out.';

CREATE OR REPLACE FUNCTION tensile.call(operation text, arguments jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    answer jsonb := tensile.run(operation, arguments::text)::jsonb;
    error jsonb := answer -> 'error';
BEGIN
    IF error IS NULL THEN
        RETURN answer -> 'result';
    ELSIF error ->> 'hint' = '' THEN
        RAISE EXCEPTION USING ERRCODE = error ->> 'sqlstate', MESSAGE = error ->> 'message';
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = error ->> 'sqlstate', MESSAGE = error ->> 'message', HINT = error ->> 'hint';
END
$$;

COMMENT ON FUNCTION tensile.call(text, jsonb) IS 'Carries out an operation of tensile_db.udf, or raises its error.';
