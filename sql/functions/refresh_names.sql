-- By names a restore elsewhere finds owners, and PostgreSQL tells nobody that a role was renamed, or dropped.  The
-- next role of a dropped one's name is another one.  Rows that others have locked are not waited for.
CREATE OR REPLACE FUNCTION tensile.refresh_names() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- Of each number that has another name by now.
    stale constant text := $stale$
        SELECT t.ctid AS place, coalesce(r.rolname::text, coalesce(t.%2$I, '') || ' (dropped)') AS name
        FROM tensile.%1$I t LEFT JOIN pg_roles r ON r.oid = t.%3$I
        WHERE t.%3$I <> 0 AND CASE WHEN r.oid IS NULL THEN coalesce(t.%2$I, '') NOT LIKE '%% (dropped)'
                                   ELSE t.%2$I IS DISTINCT FROM r.rolname::text END
    $stale$;
    kept record;
    left_over bigint;
    all_left_over bigint := 0;
BEGIN
    IF NOT tensile.is_at_home() THEN
        RETURN 0;
    END IF;
    FOR kept IN VALUES ('jobs', 'owner', 'submitted_by'), ('models', 'owner', 'owned_by'), ('quotas', 'role', 'role_oid') LOOP
        EXECUTE format('WITH stale AS (' || stale || ' FOR NO KEY UPDATE OF t SKIP LOCKED)'
                       ' UPDATE tensile.%1$I t SET %2$I = s.name FROM stale s WHERE t.ctid = s.place',
                       kept.column1, kept.column2, kept.column3);
        EXECUTE format('SELECT count(*) FROM (' || stale || ') s', kept.column1, kept.column2, kept.column3) INTO left_over;
        all_left_over := all_left_over + left_over;
    END LOOP;
    RETURN all_left_over;
END
$$;

COMMENT ON FUNCTION tensile.refresh_names() IS 'Brings the names beside the numbers of roles up to date; returns how many rows others have locked meanwhile. Workers call it.';
