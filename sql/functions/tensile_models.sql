CREATE OR REPLACE FUNCTION tensile.tensile_models()
RETURNS TABLE (
    model text,
    version integer,
    owner text,
    architecture text,
    task text,
    target text,
    features text[],
    classes integer,
    metrics jsonb,
    parameter_bytes bigint,
    job_id bigint,
    created_at timestamptz,
    pinned boolean)
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
SET row_security = on
AS $$
    SELECT m.name, m.version, coalesce(r.rolname, m.owner), m.architecture, m.task, m.target,
           ARRAY(SELECT jsonb_array_elements_text(m.features -> 'columns')), jsonb_array_length(m.classes),
           m.metrics, m.parameter_nbytes, m.job_id, m.created_at, m.pinned
    FROM tensile.models m LEFT JOIN pg_roles r ON r.oid = m.owned_by ORDER BY m.name, m.version
$$;

COMMENT ON FUNCTION tensile.tensile_models()
IS 'Lists the models that the role may use: its own; for tensile_admin, all. A pinned version is its model''s default.';
