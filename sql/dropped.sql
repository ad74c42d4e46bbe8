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
