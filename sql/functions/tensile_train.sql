CREATE OR REPLACE FUNCTION tensile.tensile_train(
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
RETURNS TABLE (
    job_id bigint,
    state text,
    model text,
    version integer,
    epochs integer,
    loss double precision,
    metrics jsonb,
    seconds double precision,
    peak_bytes bigint,
    saved double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000 ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('train', jsonb_build_object(
        'architecture', architecture, 'source', source::oid::bigint, 'target', target, 'features', features,
        'model', model, 'epochs', epochs, 'batch_size', batch_size, 'optimizer', optimizer,
        'learning_rate', learning_rate, 'validation', validation, 'seed', seed, 'priority', priority,
        'memory_limit', memory_limit, 'policy', policy, 'options', options))) AS r (
    job_id bigint, state text, model text, version integer, epochs integer, loss double precision,
    metrics jsonb, seconds double precision, peak_bytes bigint, saved double precision)
$$;

COMMENT ON FUNCTION tensile.tensile_train(
    text, regclass, name, name[], text, integer, integer, text, double precision,
    double precision, bigint, integer, bigint, text, jsonb)
IS 'Trains a network on a table, view or partitioned table, and waits for the model. Only the architecture and the source are required. Progress comes as NOTICEs; Ctrl-C and statement_timeout end the job. saved is the share of eager PyTorch''s peak that was not needed.';
