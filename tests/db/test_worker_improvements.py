"""Plans made at once while others wait, and made better afterwards, on a real worker."""

#: A network that eager PyTorch runs in about a MiB.
NETWORK = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8}
ENDLESS = 10**6


def vanilla_nbytes(database, start_worker):
    """Return what the network needs without any planning."""
    worker = start_worker()
    rows = database.wait(database.submit("pictures", kind="explain", policy="vanilla", **NETWORK))["result"]
    worker.stop()
    return next(int(row["value"]) for row in rows["rows"] if row["property"] == "guaranteed_peak")


def plans(database, job):
    return database.execute(
        "SELECT reason, adopted_at_iteration FROM tensile.plans WHERE job_id = %s ORDER BY version", job
    )


def is_training(row):
    return row["state"] == "running" and (row["iteration"] or 0) > 1


def test_a_plan_made_at_once_for_an_arrival_is_made_better_and_the_bits_stay(database, start_worker):
    memory_nbytes = int(1.1 * vanilla_nbytes(database, start_worker))
    worker = start_worker(memory_nbytes=memory_nbytes)
    first = database.submit("pictures", epochs=ENDLESS, **NETWORK)
    database.wait_until(first, is_training)
    second = database.submit("pictures", epochs=ENDLESS, **NETWORK)

    def is_improved(row):
        improved = [plan for plan in plans(database, first) if plan["reason"] == "improvement"]
        return improved and row["iteration"] > improved[0]["adopted_at_iteration"]

    database.wait_until(first, is_improved)
    reasons = [plan["reason"] for plan in plans(database, first)]
    assert reasons.index("arrival") < reasons.index("improvement")
    worker.stop()
    row = database.wait_until(first, lambda row: row["state"] == "queued")
    database.execute("UPDATE tensile.jobs SET cancel_requested = true WHERE id = %s", second)
    epochs = row["epoch"] + 1
    database.execute("UPDATE tensile.jobs SET epochs = %s WHERE id = %s", epochs, first)
    start_worker(memory_nbytes=memory_nbytes)
    assert database.wait(first)["state"] == "succeeded"
    alone = database.submit("pictures", epochs=epochs, **NETWORK)
    assert database.wait(alone)["state"] == "succeeded"
    assert database.weights(first) == database.weights(alone)
