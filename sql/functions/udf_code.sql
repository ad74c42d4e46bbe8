-- What tensile.load_udf() loads, compiled by the server's own Python.  Run alone, too: where that is another one by
-- now (catalog/install.py).
DO $$
BEGIN
    EXECUTE pg_catalog.format(
        'CREATE OR REPLACE FUNCTION tensile.udf_code() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE'
        ' SET search_path = pg_catalog, pg_temp AS %L',
        pg_catalog.format('SELECT %L::pg_catalog.bytea', tensile.compile_udf()));
END
$$;

COMMENT ON FUNCTION tensile.udf_code()
IS 'The modules behind tensile_db''s functions: Python''s number for its bytecode, a digest of the sources, compiled code.';

CREATE OR REPLACE FUNCTION tensile.is_udf_compiled() RETURNS boolean
LANGUAGE plpython3u STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $python$
from _frozen_importlib_external import MAGIC_NUMBER
code = plpy.execute("SELECT tensile.udf_code() AS code")[0]["code"]
return code.startswith(MAGIC_NUMBER + b"@udf_digest@")
$python$;

COMMENT ON FUNCTION tensile.is_udf_compiled()
IS 'Whether tensile.udf_code() is for the Python that the server has now; otherwise sessions compile for themselves.';
