-- As errors.py writes sizes.
CREATE OR REPLACE FUNCTION tensile.format_nbytes(nbytes bigint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN nbytes < 1024 THEN nbytes || ' B'
        WHEN nbytes < 1024 ^ 2 THEN round(nbytes / 1024.0, 1) || ' KiB'
        WHEN nbytes < 1024 ^ 3 THEN round(nbytes / 1024.0 ^ 2, 1) || ' MiB'
        WHEN nbytes < 1024 ^ 4 THEN round(nbytes / 1024.0 ^ 3, 1) || ' GiB'
        ELSE round(nbytes / 1024.0 ^ 4, 1) || ' TiB' END
$$;

COMMENT ON FUNCTION tensile.format_nbytes(bigint) IS 'A size for people, e.g. 1.5 KiB.';
