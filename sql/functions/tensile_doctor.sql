CREATE OR REPLACE FUNCTION tensile.tensile_doctor()
RETURNS TABLE ("check" text, status text, found text, hint text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 10
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('doctor', '{}'))
        AS r ("check" text, status text, found text, hint text)
$$;

COMMENT ON FUNCTION tensile.tensile_doctor()
IS 'Tells what is installed, running, reachable and mismatched, and what to do about it.';
