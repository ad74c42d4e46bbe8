-- Functions of older versions: what runs as the owner for a caller wants a signature now (functions/caller.sql).
-- Where something of a user's depends on one, it stays, and does what it does as its caller: nothing more.
DO $$
DECLARE
    function text;
BEGIN
    FOREACH function IN ARRAY ARRAY[
        'as_caller(text)',
        'ask_serving_again_visibly(bigint)',
        'connect_as_caller(text, text[])',
        'dblink_schema()',
        'delete_jobs(timestamptz, oid)',
        'delete_models(oid, text, integer)',
        'delete_predictions(bigint)',
        'delete_predictions_visibly(bigint)',
        'delete_serving_request(bigint)',
        'delete_serving_request_visibly(bigint)',
        'forget_serving(integer, timestamptz)',
        'forget_serving_visibly()',
        'has_worker_now()',
        'insert_job_visibly(jsonb)',
        'job_status_now(bigint)',
        'over_serving_connection(text)',
        'request_cancel_visibly(bigint)',
        'request_serving_visibly(bigint, text, boolean, bytea)',
        'serving_answer_now(bigint)']
    LOOP
        BEGIN
            EXECUTE 'DROP FUNCTION IF EXISTS tensile.' || function;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            EXECUTE pg_catalog.format('ALTER FUNCTION tensile.%s SECURITY INVOKER', function);
        END;
    END LOOP;
END
$$;

-- A function returns the columns that it was made with; where those are others now, it is made anew.  What somebody
-- has made of them is not ours to drop.
DO $$
DECLARE
    changed record;
    dependents text;
BEGIN
    FOR changed IN
        SELECT p.oid::regprocedure AS identity
        -- A column that the function has not had from the beginning.
        FROM (VALUES ('tensile_models', 'pinned')) AS known (function, later)
        JOIN pg_catalog.pg_proc p ON p.proname = known.function AND known.later <> ALL (p.proargnames)
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = 'tensile'
           OR n.nspname = 'public' AND pg_catalog.obj_description(p.oid, 'pg_proc') LIKE 'Calls tensile.%'
        -- The namesake depends on what it calls.
        ORDER BY n.nspname
    LOOP
        BEGIN
            EXECUTE 'DROP FUNCTION ' || changed.identity;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            GET STACKED DIAGNOSTICS dependents = PG_EXCEPTION_DETAIL;
            RAISE dependent_objects_still_exist USING
                MESSAGE = pg_catalog.format('%s returns more columns now, and cannot be made anew: %s',
                                            changed.identity, pg_catalog.split_part(dependents, E'\n', 1)),
                DETAIL = dependents,
                HINT = 'Drop what depends on it, install again, and make it anew.';
        END;
    END LOOP;
END
$$;
