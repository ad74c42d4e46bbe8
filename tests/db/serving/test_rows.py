"""Rows predicted one at a time by a real worker: right, together, beside training, and after a crash."""

import os
import signal
import threading
from contextlib import closing

import psycopg
import pytest

from tests.db.serving.clients import RESNET, restarted
from tests.examples import one_in
from tests.fixtures.worker import Database, make_template, starting_workers
from tests.jobs.row_client import FEW, Client
from tests.patience import wait_until

POINT = "tensile_predict('m', ARRAY[a, b])"
PICTURE = "tensile_predict('pictures', image)"
#: Some of the pictures, as bytes.
PIXELS = (
    "(SELECT id, (SELECT decode(string_agg(lpad(to_hex(pixel::integer), 2, '0'), '' ORDER BY place), 'hex')"
    " FROM unnest(image) WITH ORDINALITY u (pixel, place)) AS image FROM pictures WHERE id <= 12) pixels"
)
#: Dropout, so that the generator's state counts; Adam, so that the optimizer's does.
TRAINING = {
    "epochs": 20,
    "optimizer": "adam",
    "options": {"hidden_units": [32, 16], "dropout": 0.3},
    "model": "trained",
}


@pytest.fixture(scope="session")
def installed_template(cluster, tmp_path_factory):
    """Name of a database to be copied, in which a worker has trained the models."""
    name = make_template(cluster, f"trained_{os.getpid()}")
    login = cluster.dsn(user="worker_login", dbname=name)
    with (
        closing(Database(admin=cluster.dsn(dbname=name), worker=login)) as database,
        starting_workers(database, tmp_path_factory.mktemp("trained")) as start,
    ):
        worker = start()
        for job in (database.submit("points"), database.submit("pictures", epochs=1, **RESNET)):
            row = database.wait(job)
            assert row["state"] == "succeeded", row
        database.let_go(worker)
    return name


@pytest.fixture
def client(database, start_worker):
    """A user of the models, with a worker that is ready."""
    client = Client(database)
    client.worker = start_worker()
    database.wait_for_worker()
    return client


def test_rows_get_what_a_table_of_them_gets_in_every_form(client):
    points = client.table("m", "points")
    assert set(points.values()) == {"up", "down"}
    for form in (
        "ARRAY[a, b]",
        "ARRAY[a, b]::float8[]",
        "points",
        "ROW(a, b)",
        "to_jsonb(points)",
        "jsonb_build_array(a, b)",
    ):
        assert client.ask_all(f"tensile_predict('m', {form})", "points") == points, form
    few = client.few("pictures")
    for form in ("image", "few", "image::float8[]", "ROW(image)"):
        assert client.ask_all(f"tensile_predict('pictures', {form})", FEW) == few, form
    assert client.ask_all("tensile_predict('pictures', image)", PIXELS) == few
    # A row is written as JSON whatever the session's settings are.
    with client.database.connect() as connection:
        connection.execute("SET bytea_output = escape; SET extra_float_digits = -15; SET array_nulls = off")
        for model, source, row, want in (
            ("m", "points", "points", points),
            ("pictures", PIXELS, "pixels", few),
            ("pictures", PIXELS, "to_jsonb(pixels)", few),
        ):
            asked = f"SELECT id::text, tensile_predict('{model}', {row}) FROM {source}"
            assert dict(connection.execute(asked).fetchall()) == want
    assert len(client.served()) == 2
    assert client.database.execute("SELECT * FROM tensile.serving_requests") == []


def test_probabilities_are_those_of_the_table_and_a_number_has_none(client):
    likeliest = client.table("m", "points", "probability")
    for key, told in client.ask_all("tensile_probabilities('m', points)", "points").items():
        assert set(told) == {"up", "down"}
        assert sum(told.values()) == pytest.approx(1)
        assert max(told.values()) == pytest.approx(likeliest[key], rel=1e-5)
    job = client.database.submit(
        "points", target="a", features=["b"], model="number", options={"task": "regression"}
    )
    assert client.database.wait(job)["state"] == "succeeded"
    table = client.table("number", "points")
    rows = client.ask_all("tensile_predict('number', ARRAY[b])", "points")
    assert client.ask_all("tensile_predict('number', b::integer)", "points") == rows
    assert {key: float(text) for key, text in rows.items()} == pytest.approx(
        {key: float(text) for key, text in table.items()}, rel=1e-4, abs=1e-5
    )
    assert client.refusal("SELECT tensile_probabilities('number', ARRAY[1.0])") == (
        "22023",
        'the model "number" predicts a number, which has no probabilities',
        "Use tensile_predict.",
    )


#: Features of which no row of the model can be made, the SQLSTATE, and what is wrong.
NO_ROWS = (
    ("'m', ARRAY[1.0]", "22023", "1 value is given, but the model learned from 2 columns"),
    ("'m', '\\x00'::bytea", "22023", "the model learned from the columns a, b, not from images"),
    ("'m', '{\"a\": 1}'::jsonb", "42703", 'the row has no column "b", from which the model learned'),
    ('\'m\', \'{"a": 1, "b": "x"}\'::jsonb', "22023", '"x" is no number'),
    ("'m', '7'::jsonb", "22023", "features given as 7 are no row"),
    ("'m', ARRAY[1, 'NaN']::float8[]", "22000", 'the feature "b" holds NaN or a number out of range'),
    ("'m', ARRAY[1e300, 1]::float8[]", "22000", 'the feature "a" holds NaN or a number out of range'),
    ("'m', ROW(1, 2, 3)", "22023", "3 values are given, but the model learned from 2 columns"),
    ("'pictures', ARRAY[1.0]", "2202E", "the array has 1 elements, but the model was trained on 64"),
    (
        "'pictures', '\\x0102'::bytea",
        "2202E",
        'column "image" has 2 bytes, but raw_shape [8, 8, 1] takes 64',
    ),
)


def test_a_row_that_is_none_of_the_models_is_refused_and_touches_no_other(client):
    want = client.table("m", "points")
    with client.asking(POINT, "points", want) as rounds:
        wait_until(lambda: rounds)
        for call, sqlstate, message in NO_ROWS:
            got = client.refusal(f"SELECT tensile_predict({call})")
            assert got[:2] == (sqlstate, message)
            assert got[2]
    assert {job["state"] for job in client.served()} == {"running"}


def test_a_null_among_the_features_gives_null(client):
    for call in ("ARRAY[1, NULL]", "ROW(1, NULL::real)", '\'{"a": null, "b": 1}\'::jsonb'):
        assert client.value(f"SELECT tensile_predict('m', {call})") is None


def test_rows_of_many_sessions_go_forward_together(client):
    want = client.table("m", "points")
    sessions, gate = [], threading.Barrier(12)

    def ask():
        with client.database.connect() as connection:
            gate.wait()
            sessions.append(dict(connection.execute(f"SELECT id::text, {POINT} FROM points").fetchall()))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sessions == [want] * 12
    (job,) = client.served()
    row = client.database.wait_until(job["id"], lambda row: row["rows_total"] == 1200)
    assert row["iteration"] < 1200
    assert row["device_seconds"] > 0
    (plan,) = client.database.execute("SELECT * FROM tensile.plans WHERE job_id = %s", job["id"])
    assert row["measured_peak_nbytes"] <= plan["guaranteed_peak_nbytes"]


@pytest.mark.parametrize("sharing", one_in(2, ["auto", "fifo"]))
def test_rows_are_predicted_while_a_training_runs_whose_weights_are_as_without(
    client, database, start_worker, sharing
):
    alone = database.submit("points", **TRAINING)
    assert database.wait(alone)["state"] == "succeeded"
    restarted(client, start_worker, sharing=sharing)
    want = client.table("pictures", "pictures")
    with client.asking(PICTURE, "pictures", want):
        job = database.submit("points", **TRAINING)
        database.wait_until(job, lambda row: row["finished_at"] or (row["iteration"] or 0) > 10)
        assert client.ask_all(PICTURE, "pictures") == want
        assert database.wait(job)["state"] == "succeeded"
    assert database.weights(job) == database.weights(alone)


@pytest.mark.thorough
def test_models_that_do_not_fit_together_are_served_in_turns_beside_a_training(
    client, database, start_worker
):
    models = ["pictures", "pictures2"]
    job = database.submit("pictures", epochs=1, **(RESNET | {"model": models[1], "seed": 2}))
    assert database.wait(job)["state"] == "succeeded"
    want = {model: client.few(model) for model in models}
    (state,) = database.execute("SELECT max(parameter_nbytes) AS nbytes FROM tensile.models")
    training = database.submit("pictures", epochs=10**6, **(RESNET | {"model": "never"}))
    row = database.wait_until(training, lambda row: (row["iteration"] or 0) > 1)
    # Its state with the momentum, a model's, and next to nothing.
    memory_nbytes = int(0.5 * row["vanilla_peak_nbytes"] + state["nbytes"])
    restarted(client, start_worker, memory_nbytes=memory_nbytes, serving_batch=2)
    database.wait_until(training, lambda row: row["state"] == "running" and row["attempt"] == 2)
    with client.asking(PICTURE, FEW, want["pictures"]):
        for model in models:
            assert client.ask_all(f"tensile_predict('{model}', image)", FEW) == want[model]
    shares = database.execute(
        "SELECT peak_nbytes FROM tensile.devices d JOIN tensile.workers w ON w.id = d.worker_id"
        " WHERE w.state = 'ready'"
    )
    assert all(share["peak_nbytes"] <= memory_nbytes for share in shares)
    at = database.job(training)["iteration"]
    database.wait_until(training, lambda row: row["iteration"] > at)
    database.ask(training, cancel_requested=True)
    assert database.wait(training)["state"] == "cancelled"


def test_rows_wait_for_the_next_worker_where_theirs_is_killed(client, database, start_forked):
    want = client.table("m", "points")
    supervised = restarted(client, start_forked, memory_nbytes=64 * 2**20)
    with client.asking(POINT, "points", want) as rounds:
        wait_until(lambda: rounds)
        os.kill(supervised.worker_pid, signal.SIGKILL)
        before = len(rounds)
        wait_until(lambda: len(rounds) > before + 1)
    (job,) = client.served()
    assert (job["state"], job["attempt"]) == ("running", 2)


def test_rows_are_predicted_on_when_connections_are_lost(client, database):
    want = client.table("m", "points")
    with client.asking(POINT, "points", want) as rounds:
        for _ in range(2):
            wait_until(lambda: rounds)
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'tensile_db%%'"
            )
            rounds.clear()
        wait_until(lambda: rounds)
    assert [job["attempt"] for job in client.served()] == [1]


def test_a_model_that_nobody_asks_for_is_served_no_more_and_again_when_somebody_does(
    client, database, start_worker
):
    # Longer than a busy machine keeps one row waiting for the next.
    restarted(client, start_worker, serving_idle_s=3)
    want = client.table("m", "points")
    assert client.ask_all(POINT, "points") == want
    (job,) = client.served()
    row = database.wait(job["id"])
    assert (row["state"], row["result"]["rows"]) == ("succeeded", 100)
    assert client.ask_all(POINT, "points") == want
    assert len(client.served()) == 2


def test_a_model_that_is_dropped_is_served_no_more(client, database):
    client.ask_all(POINT, "points")
    (job,) = client.served()
    with client.database.connect() as connection:
        thread = threading.Thread(target=lambda: client.rows("SELECT tensile_drop_model('m')"))
        thread.start()
        # Some thousand rows, of which the first are predicted.
        ask = f"SELECT {POINT} FROM points, generate_series(1, 100)"
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(ask)
        thread.join()
    assert caught.value.sqlstate in ("42704", "57014")
    assert database.wait(job["id"])["state"] == "cancelled"
    assert client.refusal("SELECT tensile_predict('m', ARRAY[1, 2])")[0] == "42704"


def test_another_default_version_is_served_from_the_next_row_on(client, database):
    client.ask_all(POINT, "points")
    newer = database.submit("points", epochs=1, learning_rate=1e-6, seed=5)
    database.wait(newer)
    assert client.ask_all(POINT, "points") == client.table("m", "points")
    older = dict(client.rows("SELECT id::text, tensile_predict('m', ARRAY[a, b], version => 1) FROM points"))
    assert older == dict(client.rows("SELECT row_key, prediction FROM tensile_predict('m', 'points', 1)"))
    assert [job["model_version"] for job in client.served()] == [1, 2]
    client.rows("SELECT tensile_pin_model('m', 1)")
    assert client.ask_all(POINT, "points") == client.table("m", "points") == older


def test_who_asks_for_a_model_that_does_not_fit_learns_how_much_it_needs(client, start_worker):
    restarted(client, start_worker, memory_nbytes=20_000)
    state, message, hint = client.refusal("SELECT tensile_predict('pictures', image) FROM pictures LIMIT 1")
    assert state == "53200"
    assert message.startswith("the job needs at least ")
    assert hint


@pytest.mark.thorough
def test_a_serving_job_that_is_cancelled_says_so_to_who_waits_and_comes_again(client, database):
    want = client.table("m", "points")
    client.ask_all(POINT, "points")
    (job,) = client.served()
    assert client.rows("SELECT phase FROM tensile.progress WHERE job_id = %s", job["id"]) == [("serving",)]
    assert client.refusal(f"SELECT tensile_pause({job['id']})")[0] == "0A000"
    client.rows("SELECT tensile_cancel(%s)", job["id"])
    assert database.wait(job["id"])["state"] == "cancelled"
    assert client.ask_all(POINT, "points") == want
