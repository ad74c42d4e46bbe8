"""Views that predict row by row as sources: the worker that reads them is the one that answers."""

import psycopg

from tests.jobs.ended_jobs import model_of, trained

#: Their rows are more bytes than a server keeps back before it sends the first ones.
WIDE = """
    CREATE TABLE wide AS
    SELECT i AS id, mod(i, 2) AS label,
        ARRAY(SELECT mod(i, k + 2)::real FROM generate_series(1, 100) k) AS numbers
    FROM generate_series(1, 100) i;
    ALTER TABLE wide OWNER TO anna;
    CREATE VIEW predicted AS SELECT numbers, tensile_predict('m', numbers) AS label FROM wide;
    ALTER VIEW predicted OWNER TO anna
"""


def test_what_a_model_predicts_is_learned_from_as_a_view_shows_it(database, start_worker):
    start_worker()
    database.execute(WIDE)
    trained(database, "wide", model="m", features=["numbers"], target="label")
    learned = trained(database, "predicted", model="n", features=["numbers"], target="label")
    with psycopg.connect(database.admin, user="anna") as anna:
        seen = anna.execute(
            "SELECT DISTINCT prediction FROM tensile_predict('m', 'wide') ORDER BY 1"
        ).fetchall()
    assert model_of(database, learned)["classes"] == [prediction for (prediction,) in seen]
