-- The functions by their bare names: tensile_train('vgg16', 'images_table') from any client.
--
-- Each function of tensile named tensile_* gets a namesake in public that calls it, because no setting of a
-- search_path reaches every client: those of the database, of a role and of a pooler override each other.
-- Bodies are bound to what they call when they are made (BEGIN ATOMIC), so a caller's search_path means
-- nothing to them.
--
-- Where there is a source, a second one takes its name as text: 'images_table' is then resolved here, in
-- the caller's search_path, and an unknown name gets a hint, which regclass has none of.
CREATE OR REPLACE FUNCTION tensile.find_source(source text) RETURNS regclass
LANGUAGE plpgsql STABLE STRICT PARALLEL UNSAFE
AS $$
-- UNSAFE: the block with EXCEPTION is a subtransaction, which no parallel query may begin.
-- Without a search_path of its own: the caller's decides which table is meant.  All else is qualified.
DECLARE
    found pg_catalog.regclass;
BEGIN
    BEGIN
        found := pg_catalog.to_regclass(source);
    EXCEPTION WHEN invalid_name OR syntax_error OR feature_not_supported THEN
        -- No name, one with too many dots, or of another database: no source of ours.
    END;
    IF found IS NULL THEN
        PERFORM tensile.call('missing_source', pg_catalog.jsonb_build_object('source', source));
    END IF;
    RETURN found;
END
$$;

COMMENT ON FUNCTION tensile.find_source(text) IS 'Finds a table or view by its name in the caller''s search_path.';

-- The functions of tensile that take its name as text, too: among their forms for one row, a literal is to go on
-- meaning a table.
CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, source text, version integer DEFAULT NULL)
RETURNS TABLE (row_key text, prediction text, probability double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
BEGIN ATOMIC SELECT * FROM tensile.tensile_predict(model, tensile.find_source(source), version); END;

COMMENT ON FUNCTION tensile.tensile_predict(text, text, integer)
IS 'Predicts every row of a source, by its name, with a model, its default version unless one is given.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, source text, version integer, key text)
RETURNS TABLE (row_key text, prediction text, probability double precision)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
BEGIN ATOMIC SELECT * FROM tensile.tensile_predict(model, tensile.find_source(source), version, key); END;

COMMENT ON FUNCTION tensile.tensile_predict(text, text, integer, text)
IS 'Predicts every row of a source, by its name, whose keys are in the column that is named.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, source text, version integer DEFAULT NULL, key text DEFAULT NULL)
RETURNS TABLE (row_key text, probabilities jsonb)
LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 100000
BEGIN ATOMIC SELECT * FROM tensile.tensile_probabilities(model, tensile.find_source(source), version, key); END;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, text, integer, text)
IS 'Returns the probability of each class for every row of a source, by its name.';

DO $$
DECLARE
    made_by constant text := 'Calls tensile.';
    function record;
    variant record;
    identity text;
    kept oid[] := '{}';
BEGIN
    IF pg_catalog.to_regnamespace('public') IS NULL THEN
        RAISE WARNING 'there is no schema public: call the functions as tensile.tensile_train(...)';
        RETURN;
    END IF;
    FOR function IN
        SELECT p.oid, p.proname AS name, p.proretset, p.pronargs, p.provolatile, p.proparallel,
               pg_catalog.pg_get_function_arguments(p.oid) AS arguments,
               pg_catalog.oidvectortypes(p.proargtypes) AS types,
               pg_catalog.pg_get_function_result(p.oid) AS result,
               p.procost AS cost, 'record'::regtype = ANY (p.proargtypes) AS takes_record,
               (SELECT i FROM pg_catalog.generate_subscripts(p.proargnames, 1) i
                WHERE p.proargnames[i] = 'source' AND i <= p.pronargs) AS source_place
        FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'tensile'::regnamespace AND p.proname LIKE 'tensile\_%' AND p.prokind = 'f'
          -- The namesake of one that takes its name as text is made here.
          AND pg_catalog.pg_get_function_arguments(p.oid) NOT LIKE '%source text%'
        ORDER BY p.proname
    LOOP
        FOR variant IN
            SELECT 'regclass' AS source UNION ALL SELECT 'text' WHERE function.source_place IS NOT NULL
        LOOP
            identity := pg_catalog.format('public.%I(%s)', function.name,
                replace(function.types, 'regclass', variant.source));
            EXECUTE pg_catalog.format(
                'CREATE OR REPLACE FUNCTION public.%I(%s) RETURNS %s %s %s tensile.%I(%s)%s',
                function.name, replace(function.arguments, 'source regclass', 'source ' || variant.source),
                function.result,
                pg_catalog.format('%s PARALLEL %s COST %s',
                    CASE function.provolatile WHEN 'v' THEN 'VOLATILE' ELSE 'STABLE' END,
                    CASE function.proparallel WHEN 'u' THEN 'UNSAFE' ELSE 'RESTRICTED' END, function.cost),
                -- Only PL/pgSQL takes rows of any type.
                CASE WHEN function.takes_record THEN 'LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$BEGIN RETURN'
                    ELSE 'LANGUAGE sql BEGIN ATOMIC SELECT * FROM' END,
                function.name,
                (SELECT pg_catalog.string_agg(
                    CASE WHEN i = function.source_place AND variant.source = 'text'
                    THEN 'tensile.find_source($' || i || ')' ELSE '$' || i END, ', ' ORDER BY i)
                 FROM pg_catalog.generate_series(1, function.pronargs) i),
                CASE WHEN function.takes_record THEN '; END$body$' ELSE '; END' END);
            EXECUTE pg_catalog.format('COMMENT ON FUNCTION %s IS %L', identity, pg_catalog.concat(
                made_by, function.name, ': ', pg_catalog.obj_description(function.oid, 'pg_proc')));
            EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', identity);
            EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO tensile_user', identity);
            kept := kept || identity::regprocedure::oid;
        END LOOP;
    END LOOP;
    -- Namesakes of functions that had other arguments in an older version.
    FOR function IN
        SELECT p.oid::regprocedure::text AS identity FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = 'public'::regnamespace AND p.oid <> ALL (kept) AND p.prokind = 'f'
        AND pg_catalog.obj_description(p.oid, 'pg_proc') LIKE made_by || 'tensile\_%'
    LOOP
        EXECUTE 'DROP FUNCTION ' || function.identity;
    END LOOP;
END
$$;
