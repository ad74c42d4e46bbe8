CREATE OR REPLACE FUNCTION tensile.tensile_explain(
    architecture text,
    source regclass,
    target name DEFAULT NULL,
    features name[] DEFAULT NULL,
    model text DEFAULT NULL,
    epochs integer DEFAULT 5,
    batch_size integer DEFAULT 32,
    optimizer text DEFAULT 'momentum',
    learning_rate double precision DEFAULT NULL,
    validation double precision DEFAULT 0.1,
    seed bigint DEFAULT 0,
    priority integer DEFAULT 0,
    memory_limit bigint DEFAULT NULL,
    policy text DEFAULT 'auto',
    options jsonb DEFAULT '{}')
RETURNS TABLE (property text, value text, unit text, detail text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000 ROWS 30
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('explain', jsonb_build_object(
        'architecture', architecture, 'source', source::oid::bigint, 'target', target, 'features', features,
        'model', model, 'epochs', epochs, 'batch_size', batch_size, 'optimizer', optimizer,
        'learning_rate', learning_rate, 'validation', validation, 'seed', seed, 'priority', priority,
        'memory_limit', memory_limit, 'policy', policy, 'options', options)))
        AS r (property text, value text, unit text, detail text)
$$;

COMMENT ON FUNCTION tensile.tensile_explain(
    text, regclass, name, name[], text, integer, integer, text, double precision,
    double precision, bigint, integer, bigint, text, jsonb)
IS 'Has a worker capture and plan a job without training it: its peaks, swaps, recomputation and time, and whether it fits; if not, the least memory that would do. Several rows of frontier tell the time within other budgets, of top_tensor what is large and idle for long.';
