"""The whole line from a client's SELECT to trained weights and back, with a real worker."""

import io
import threading
import time
from contextlib import contextmanager

import numpy as np
import psycopg
import pytest
from PIL import Image
from psycopg import sql
from psycopg.rows import dict_row

from tests.patience import wait_until

TRAIN = """
    SELECT * FROM tensile_train('test_resnet', {source}, target => {target}, model => {model}, epochs => 2,
                                batch_size => 8, seed => 3, validation => 0.25, options => {options})
"""


@contextmanager
def user(database, notices=None):
    """Connect as anna; NOTICEs are appended to `notices`."""
    with database.connect(row_factory=dict_row) as connection:
        if notices is not None:
            connection.add_notice_handler(lambda diag: notices.append(diag.message_primary))
        yield connection


def train(database, source="pictures", *, target="label", model="m", options="{}", notices=None):
    """Call tensile_train as anna; return its row."""
    with user(database, notices) as connection:
        statement = sql.SQL(TRAIN).format(source=source, target=target, model=model, options=options)
        return connection.execute(statement).fetchone()


def refusal(database, source, **arguments):
    """Train what must fail; return SQLSTATE, message and hint."""
    with pytest.raises(psycopg.Error) as caught:
        train(database, source, **arguments)
    diag = caught.value.diag
    return diag.sqlstate, diag.message_primary, diag.message_hint


def png(row: int, label: int) -> bytes:
    """Return a grey image, brighter for the second class."""
    pixels = (np.arange(100).reshape(10, 10) * row % 100 + 100 * label).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def worker(database, start_worker):
    """Start workers, and wait until the database knows each of them and what it can train."""

    def start(**settings):
        # One that was told to stop is still ready for a moment.
        (before,) = database.execute("SELECT coalesce(max(id), 0) AS newest FROM tensile.workers")
        started = start_worker(**settings)
        ready = (
            "SELECT 1 FROM tensile.workers w, tensile.architectures a"
            " WHERE w.state = 'ready' AND w.id > %s AND a.name = 'test_resnet'"
        )
        wait_until(lambda: database.execute(ready, before["newest"]))
        return started

    return start


@pytest.fixture
def images(database):
    """Table of anna's: 60 PNG images in bytea with text labels."""
    database.execute("CREATE TABLE images (id int PRIMARY KEY, image bytea, label text)")
    with psycopg.connect(database.admin) as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO images VALUES (%s, %s, %s)",
            [(i, png(i, i % 2), ("dark", "bright")[i % 2]) for i in range(60)],
        )
    database.execute("ALTER TABLE images OWNER TO anna")
    return "images"


def test_images_in_bytea_train_predict_and_evaluate_from_sql(database, worker, images):
    worker()
    notices = []
    trained = train(database, images, model="light", notices=notices)
    assert (trained["state"], trained["model"], trained["version"]) == ("succeeded", "light", 1)
    assert 0 <= trained["saved"] < 1
    assert notices
    with user(database) as connection:
        (model,) = connection.execute("SELECT * FROM tensile_models()").fetchall()
        assert (model["classes"], model["target"], model["features"]) == (2, "label", ["image"])
        rows = connection.execute(
            "SELECT p.*, i.label FROM tensile_predict('light', 'images') p"
            " JOIN images i ON i.id::text = row_key"
        ).fetchall()
        assert len(rows) == 60
        assert {row["prediction"] for row in rows} <= {"dark", "bright"}
        accuracy = sum(row["prediction"] == row["label"] for row in rows) / 60
        metrics = connection.execute("SELECT * FROM tensile_evaluate('light', 'images')").fetchall()
        assert {row["metric"]: row["value"] for row in metrics}["accuracy"] == pytest.approx(accuracy)
        assert connection.execute("SELECT tensile_drop_model('light')").fetchone() == {
            "tensile_drop_model": 1
        }
    assert database.execute("SELECT * FROM tensile.predictions") == []


def test_eight_connections_train_at_once_and_get_the_bits_of_one_alone(database, worker):
    first = worker()
    alone = train(database, model="alone")
    first.stop()
    worker(memory_nbytes=int(2.5 * database.job(alone["job_id"])["vanilla_peak_nbytes"]))
    notices: list[list[str]] = [[] for _ in range(8)]
    results: list[dict] = [{}] * 8

    def call(number: int) -> None:
        results[number] = train(database, model=f"m{number}", notices=notices[number])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(400)
    assert [(row["state"], row["model"]) for row in results] == [("succeeded", f"m{i}") for i in range(8)]
    expected = database.weights(alone["job_id"])
    assert all(database.weights(row["job_id"]) == expected for row in results)
    for mine, row in zip(notices, results, strict=True):
        others = {str(other["job_id"]) for other in results} - {str(row["job_id"])}
        assert mine
        assert not any(line.startswith(f"job {other}:") for other in others for line in mine)


@pytest.mark.parametrize(
    ("change", "sqlstate", "message"),
    [
        ("UPDATE images SET image = NULL WHERE id = 9", "22004", 'column "image" of row id=9 holds a NULL'),
        ("UPDATE images SET label = NULL WHERE id = 9", "22004", 'column "label" of row id=9 holds a NULL'),
        ("UPDATE images SET image = 'hello' WHERE id = 9", "22P03", 'column "image" of row id=9 is no image'),
        ("UPDATE images SET label = 'dark'", "22000", "one class only"),
        ("DELETE FROM images", "22000", "rows"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named_and_leave_nothing(
    database, worker, images, change, sqlstate, message
):
    worker()
    database.execute(change)
    state, said, hint = refusal(database, images)
    assert message in said
    assert state == sqlstate
    assert hint
    assert database.execute("SELECT * FROM tensile.models") == []
    assert database.execute("SELECT * FROM tensile.checkpoints") == []


def test_ragged_arrays_name_their_row(database, worker):
    worker()
    database.execute("UPDATE pictures SET image = image[1:10] WHERE id = 7")
    state, said, hint = refusal(database, "pictures")
    assert (state, 'column "image" of row id=7' in said) == ("2202E", True)
    assert hint


def test_a_batch_that_fits_nowhere_says_the_least_memory_that_would_do(database, worker):
    worker(memory_nbytes=60_000)
    state, said, hint = refusal(database, "pictures")
    assert state == "53200"
    assert "needs at least" in said
    assert "batch_size" in hint


def test_ctrl_c_ends_the_job_and_gives_its_memory_back(database, worker):
    worker()
    with user(database) as connection:

        def interrupt() -> None:
            while not database.execute("SELECT 1 FROM tensile.jobs WHERE iteration > 2"):
                time.sleep(0.05)
            connection.cancel_safe()

        watcher = threading.Thread(target=interrupt)
        watcher.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(
                "SELECT * FROM tensile_train('test_resnet', 'pictures', epochs => 100000, batch_size => 8)"
            )
        watcher.join()
    (job,) = database.execute("SELECT id FROM tensile.jobs")
    row = database.wait(job["id"])
    assert (row["state"], row["error_sqlstate"]) == ("cancelled", "57014")

    def used() -> int | None:
        return database.execute("SELECT used_nbytes FROM tensile.devices")[0]["used_nbytes"]

    wait_until(lambda: used() == 0)


def test_a_view_and_a_partitioned_table_are_sources_and_rows_of_others_stay_hidden(database, worker):
    worker()
    database.execute(
        "CREATE TABLE parts (id int, a real, label text, owner name) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (30);"
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (30) TO (100);"
        "INSERT INTO parts SELECT i, i, CASE WHEN i > 30 THEN 'high' ELSE 'low' END,"
        "  CASE WHEN i < 60 THEN 'anna' ELSE 'other' END FROM generate_series(0, 99) i;"
        "ALTER TABLE parts ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY own ON parts USING (owner = current_user);"
        "CREATE VIEW halved AS SELECT a / 2 AS a, label FROM parts;"
        "ALTER VIEW halved OWNER TO anna;"
        "GRANT SELECT ON parts TO anna"
    )
    for source in ("parts", "halved"):
        with user(database) as connection:
            row = connection.execute(
                "SELECT * FROM tensile_train('mlp', %s, features => '{a}', epochs => 1, batch_size => 8)",
                [source],
            ).fetchone()
        assert row["state"] == "succeeded"
        assert database.job(row["job_id"])["rows_total"] == 60
