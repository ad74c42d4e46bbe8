"""A database in another encoding than Python's."""

import os

import pytest

from tests.fixtures.worker import make_template


@pytest.fixture(scope="module")
def installed_template(cluster):
    """The database whose copies the tests have, in LATIN1."""
    options = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    return make_template(cluster, f"latin1_{os.getpid()}", options)


def test_labels_of_its_encoding_are_learned_and_predicted(database, start_worker):
    database.execute("UPDATE points SET label = CASE label WHEN 'up' THEN 'ä' ELSE 'ß' END")
    start_worker()
    row = database.wait(database.submit("points", epochs=1))
    assert row["state"] == "succeeded"
    with database.connect(client_encoding="UTF8") as connection:
        found = connection.execute("SELECT prediction FROM tensile_predict('m', 'points')").fetchall()
        (one,) = connection.execute("SELECT tensile_predict('m', ARRAY[a, b]) FROM points LIMIT 1").fetchone()
    assert len(found) == 100
    assert {label for (label,) in found} | {one} <= {"ä", "ß"}


def test_names_of_its_encoding_are_found(database, start_worker):
    database.execute('ALTER TABLE points RENAME TO "punkte_größe"')
    database.execute('ALTER TABLE "punkte_größe" RENAME COLUMN a TO "größe"')
    start_worker()
    database.wait_for_worker()
    with database.connect(client_encoding="UTF8") as connection:
        (state,) = connection.execute(
            "SELECT state FROM tensile_train('mlp', '\"punkte_größe\"', features => '{größe,b}', epochs => 1)"
        ).fetchone()
        (one,) = connection.execute(
            """SELECT tensile_predict('mlp', ARRAY["größe", b]) FROM "punkte_größe" LIMIT 1"""
        ).fetchone()
    assert state == "succeeded"
    assert one in {"up", "down"}
