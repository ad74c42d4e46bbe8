-- One row at a time, in the select list of any query.  STABLE although a worker is asked: a view's predictions
-- that a query does not look at are not made.  Unsafe in parallel plans, which allow no subtransactions.

-- A type with a name has columns with names.  A record has those of a subquery, or, where ROW(...) made it, f1, f2,
-- ... in this order, which JSON keeps and jsonb does not.
CREATE OR REPLACE FUNCTION tensile.form_of_record(fields json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM json_object_keys(fields) WITH ORDINALITY k (name, place)
                             WHERE k.name <> 'f' || k.place)
           THEN 'object' ELSE 'unnamed' END
$$;

COMMENT ON FUNCTION tensile.form_of_record(json) IS 'How tensile.predict_row is to read a record: unnamed, as ROW(...) is, by place; object, by the names of its columns.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features bytea, version integer DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'bytes', features, NULL, false)).prediction $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, bytea, integer) IS 'Predicts one row with a model, its default version unless one is given. The features are an image, as its column holds it; NULL gives NULL.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features double precision[], version integer DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'array', array_send(features), NULL, false)).prediction $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, double precision[], integer) IS 'Predicts one row with a model, its default version unless one is given. The features are the elements of the array that it learned from, or its columns of numbers in their order; where one is NULL so is the result, unless the model takes NULLs.';

-- Without it a whole number would be taken for a table's OID.
CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features double precision, version integer DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'number', CASE WHEN features IS NOT NULL THEN array_send(ARRAY[features]) END, NULL, false)).prediction $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, double precision, integer) IS 'Predicts one row with a model, its default version unless one is given. The features are the number in the only column that it learned from; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features boolean[], version integer DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'array', array_send(features::integer[]::double precision[]), NULL, false)).prediction $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, boolean[], integer) IS 'Predicts one row with a model, its default version unless one is given. The features are the elements of the array that it learned from, or its columns in their order; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features jsonb, version integer DEFAULT NULL) RETURNS text
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'object', NULL, features, false)).prediction $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, jsonb, integer) IS 'Predicts one row with a model, its default version unless one is given. The features are an object by the names of its columns, or an array in their order; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_predict(model text, features record, version integer DEFAULT NULL) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
-- Whatever the session's are: so the row's values are written for the worker.
SET bytea_output = hex
SET extra_float_digits = 1
AS $$ BEGIN RETURN (tensile.predict_row(model, version, CASE pg_typeof(features) WHEN 'record'::regtype THEN tensile.form_of_record(to_json(features)) ELSE 'object' END, NULL, to_jsonb(features), false)).prediction; END $$;

COMMENT ON FUNCTION tensile.tensile_predict(text, record, integer) IS 'Predicts one row with a model, its default version unless one is given. The features are a row of a table or subquery, by the names of its columns, or ROW(...), by place; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features bytea, version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'bytes', features, NULL, true)).probabilities $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, bytea, integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are an image, as its column holds it; NULL gives NULL.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features double precision[], version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'array', array_send(features), NULL, true)).probabilities $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, double precision[], integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are the elements of the array that it learned from, or its columns of numbers in their order; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features double precision, version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'number', CASE WHEN features IS NOT NULL THEN array_send(ARRAY[features]) END, NULL, true)).probabilities $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, double precision, integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are the number in the only column that it learned from; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features boolean[], version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'array', array_send(features::integer[]::double precision[]), NULL, true)).probabilities $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, boolean[], integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are the elements of the array that it learned from, or its columns in their order; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features jsonb, version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
AS $$ SELECT (tensile.predict_row(model, version, 'object', NULL, features, true)).probabilities $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, jsonb, integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are an object by the names of its columns, or an array in their order; where one is NULL so is the result, unless the model takes NULLs.';

CREATE OR REPLACE FUNCTION tensile.tensile_probabilities(model text, features record, version integer DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE PARALLEL UNSAFE COST 10000
SET search_path = pg_catalog, pg_temp
-- Whatever the session's are: so the row's values are written for the worker.
SET bytea_output = hex
SET extra_float_digits = 1
AS $$ BEGIN RETURN (tensile.predict_row(model, version, CASE pg_typeof(features) WHEN 'record'::regtype THEN tensile.form_of_record(to_json(features)) ELSE 'object' END, NULL, to_jsonb(features), true)).probabilities; END $$;

COMMENT ON FUNCTION tensile.tensile_probabilities(text, record, integer) IS 'Returns the probability of each class for one row, by a model, its default version unless one is given. The features are a row of a table or subquery, by the names of its columns, or ROW(...), by place; where one is NULL so is the result, unless the model takes NULLs.';
