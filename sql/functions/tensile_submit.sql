CREATE OR REPLACE FUNCTION tensile.tensile_submit(
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
RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('submit', jsonb_build_object(
        'architecture', architecture, 'source', source::oid::bigint, 'target', target, 'features', features,
        'model', model, 'epochs', epochs, 'batch_size', batch_size, 'optimizer', optimizer,
        'learning_rate', learning_rate, 'validation', validation, 'seed', seed, 'priority', priority,
        'memory_limit', memory_limit, 'policy', policy, 'options', options))::bigint
$$;

COMMENT ON FUNCTION tensile.tensile_submit(
    text, regclass, name, name[], text, integer, integer, text, double precision,
    double precision, bigint, integer, bigint, text, jsonb)
IS 'Queues a training job as tensile_train does, and returns its id at once. Workers see it at COMMIT; at ROLLBACK it is gone.';
