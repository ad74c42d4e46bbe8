"""A database without an encoding, whose texts are UTF-8 all the same."""

import os

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.fixtures.worker import make_template


@pytest.fixture(scope="module")
def installed_template(cluster):
    """The database whose copies the tests have, in SQL_ASCII."""
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    return make_template(cluster, f"sql_ascii_{os.getpid()}", options)


def test_texts_are_learned_from_and_predicted(database, start_worker):
    with psycopg.connect(
        make_conninfo(database.admin, client_encoding="UTF8"), autocommit=True
    ) as connection:
        connection.execute("UPDATE points SET label = CASE label WHEN 'up' THEN 'ä' ELSE 'ß' END")
        connection.execute("CREATE TABLE texts AS SELECT *, label || 'é' AS text FROM points")
        connection.execute("ALTER TABLE texts OWNER TO anna")
        connection.execute("ALTER TABLE texts ADD PRIMARY KEY (id)")
    start_worker()
    row = database.wait(database.submit("texts", features=["a", "text"], epochs=20))
    # Such a database's own clients get bytes.
    assert row["state"] == b"succeeded", row["error_message"]
    (model,) = database.execute(
        "SELECT convert_to(features::text, 'SQL_ASCII') AS features FROM tensile.models WHERE id = %s",
        row["model_id"],
    )
    assert '"ßé"' in model["features"].decode()
    with database.connect(client_encoding="UTF8") as connection:
        found = connection.execute(
            "SELECT DISTINCT prediction, label FROM tensile_predict('m', 'texts')"
            " JOIN texts ON id::text = row_key"
        ).fetchall()
    assert set(found) == {("ä", "ä"), ("ß", "ß")}
