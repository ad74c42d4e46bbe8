"""Jobs over the table `pictures`, of a network small enough for a worker of a test."""

#: A network that eager PyTorch runs in about a MiB.
NETWORK = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8}

#: A training of which tensors are kept as codes where memory is short.
PACKABLE = {
    "architecture": "test_resnet",
    "features": ["image"],
    "batch_size": 32,
    "epochs": 3,
    "optimizer": "momentum",
    "options": {"image_size": 32, "seed": 3},
}


def vanilla_nbytes(database, start_worker):
    """Return what the network needs without any planning."""
    worker = start_worker()
    job = database.submit("pictures", kind="explain", policy="vanilla", **NETWORK)
    rows = database.wait(job)["result"]["rows"]
    worker.stop()
    return next(int(row["value"]) for row in rows if row["property"] == "guaranteed_peak")


def is_training(row):
    """Whether the job of this row has begun to iterate."""
    return row["state"] == "running" and (row["iteration"] or 0) > 1


def cancel(database, *jobs):
    """Cancel jobs; return the states in which they end."""
    for job in jobs:
        database.ask(job, cancel_requested=True)
    return [database.wait(job)["state"] for job in jobs]
