CREATE OR REPLACE FUNCTION tensile.tensile_submit_search(
    architecture text,
    source regclass,
    space jsonb,
    method text DEFAULT 'random',
    trials integer DEFAULT NULL,
    max_parallel integer DEFAULT 2,
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
    options jsonb DEFAULT '{}',
    metric text DEFAULT 'loss')
RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT tensile.call('submit_search', jsonb_build_object(
        'architecture', architecture, 'source', source::oid::bigint, 'space', space, 'method', method,
        'trials', trials, 'max_parallel', max_parallel, 'target', target, 'features', features,
        'model', model, 'epochs', epochs, 'batch_size', batch_size, 'optimizer', optimizer,
        'learning_rate', learning_rate, 'validation', validation, 'seed', seed, 'priority', priority,
        'memory_limit', memory_limit, 'policy', policy, 'options', options, 'metric', metric))::bigint
$$;

COMMENT ON FUNCTION tensile.tensile_submit_search(
    text, regclass, jsonb, text, integer, integer, name, name[], text, integer, integer, text, double precision,
    double precision, bigint, integer, bigint, text, jsonb, text)
IS 'Queues a search as tensile_search does, and returns its id at once, for tensile_wait, tensile_cancel and tensile.trials. Workers see it at COMMIT; at ROLLBACK it is gone.';
