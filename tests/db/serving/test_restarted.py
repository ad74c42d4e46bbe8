"""Many models that a real worker finds served when it starts: who is made ready first."""

from tensile_db.worker.serving import serve_job
from tests.jobs.row_client import Client
from tests.patience import wait_until

MODELS = tuple(f"m{number}" for number in range(1, 7))


def ask(connection, model):
    """Ask for a row of a model without waiting for it."""
    connection.execute(
        "SELECT tensile.insert_serving_request(m.id, 'array', false, array_send(ARRAY[1, 2]::float8[]), pid,"
        " backend_start) FROM pg_stat_get_activity(pg_backend_pid()), tensile.models m WHERE m.name = %s",
        [model],
    )


def test_models_that_somebody_waits_for_are_ready_first(database, start_worker, monkeypatch):
    client = Client(database)
    client.worker = start_worker()
    for model in MODELS:
        assert database.wait(database.submit("points", epochs=1, model=model))["state"] == "succeeded"
    for model in MODELS:
        client.ask_all(f"tensile_predict('{model}', ARRAY[a, b])", "points LIMIT 1")
    asked, begun = (MODELS[-1], MODELS[-2]), []
    real = serve_job.read_state

    def slowly(job, model):
        begun.append(model.name)
        if len(begun) == 1:
            # The others have come meanwhile, and so have the rows of those that are asked for.
            coming = "SELECT 1 FROM tensile.jobs WHERE kind = 'serve' AND phase IN ('queued', 'reading')"
            wait_until(lambda: not database.execute(coming))
            wait_until(lambda: {*asked} <= {*begun})
        return real(job, model)

    monkeypatch.setattr(serve_job, "read_state", slowly)
    client.worker.stop()
    served = "SELECT 1 FROM tensile.jobs WHERE kind = 'serve' AND state = 'queued'"
    wait_until(lambda: len(database.execute(served)) == len(MODELS))
    answered = "SELECT 1 FROM tensile.serving_requests WHERE answered"
    with client.database.connect() as connection:
        for model in asked:
            ask(connection, model)
        start_worker()
        wait_until(lambda: len(database.execute(answered)) == len(asked))
    wait_until(lambda: len(begun) == len(MODELS))
    # But for the one that was begun before any row had been read.
    assert {*asked} <= {*begun[:3]}
