CREATE OR REPLACE FUNCTION tensile.tensile_search(
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
RETURNS TABLE (
    search_id bigint,
    trial integer,
    job_id bigint,
    model text,
    version integer,
    params jsonb,
    value double precision,
    metric text,
    begun integer,
    pruned integer,
    failed integer,
    seconds double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000 ROWS 1
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT * FROM jsonb_to_recordset(tensile.call('search', jsonb_build_object(
        'architecture', architecture, 'source', source::oid::bigint, 'space', space, 'method', method,
        'trials', trials, 'max_parallel', max_parallel, 'target', target, 'features', features,
        'model', model, 'epochs', epochs, 'batch_size', batch_size, 'optimizer', optimizer,
        'learning_rate', learning_rate, 'validation', validation, 'seed', seed, 'priority', priority,
        'memory_limit', memory_limit, 'policy', policy, 'options', options, 'metric', metric))) AS r (
    search_id bigint, trial integer, job_id bigint, model text, version integer, params jsonb, value double precision,
    metric text, begun integer, pruned integer, failed integer, seconds double precision)
$$;

COMMENT ON FUNCTION tensile.tensile_search(
    text, regclass, jsonb, text, integer, integer, name, name[], text, integer, integer, text, double precision,
    double precision, bigint, integer, bigint, text, jsonb, text)
IS 'Looks for the values of arguments and options that train the best model: trains once for each choice, several at a time on the same rows, waits, and returns the best trial, whose model alone is kept. Progress comes as NOTICEs; Ctrl-C and statement_timeout end all trials. tensile.trials has them all.';
