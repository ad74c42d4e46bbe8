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
    function regprocedure;
    stated text;
    dependents text;
BEGIN
    -- The namesake, where it is ours, before what it calls.
    FOR changed IN
        SELECT s.schema || f.name AS name, s.schema = 'public.' AS is_namesake, f.later
        -- A function, and a column that it has not had from the beginning.
        FROM (VALUES ('tensile_models()', 'pinned')) AS f (name, later),
             (VALUES ('public.'), ('tensile.')) AS s (schema)
        ORDER BY s.schema
    LOOP
        SELECT p.oid INTO function FROM pg_catalog.pg_proc p
        WHERE p.oid = pg_catalog.to_regprocedure(changed.name) AND p.prokind = 'f'
          AND changed.later <> ALL (p.proargnames)
          AND (NOT changed.is_namesake OR pg_catalog.obj_description(p.oid, 'pg_proc') LIKE 'Calls tensile.%');
        CONTINUE WHEN function IS NULL;
        BEGIN
            EXECUTE 'DROP FUNCTION ' || function;
        EXCEPTION WHEN dependent_objects_still_exist THEN
            -- Of an extension's function the message says what depends on it; there is no detail.
            GET STACKED DIAGNOSTICS stated = MESSAGE_TEXT, dependents = PG_EXCEPTION_DETAIL;
            RAISE dependent_objects_still_exist USING
                MESSAGE = pg_catalog.format('%s returns more columns now, and cannot be made anew: %s', function,
                    coalesce(nullif(pg_catalog.split_part(dependents, E'\n', 1), ''), stated)),
                DETAIL = dependents,
                HINT = 'Drop what depends on it, or take it out of the extension, and try again.';
        END;
    END LOOP;
END
$$;
