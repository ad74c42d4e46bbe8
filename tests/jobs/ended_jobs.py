"""Trainings that have ended, and what they have left in the catalog."""

#: Of an epoch: the loss of the rows trained on, and eight metrics of those held out, of two classes.
METRICS_AN_EPOCH = 9


def model_of(database, job):
    """Return the row of the model that a job has made."""
    (model,) = database.execute("SELECT * FROM tensile.models WHERE job_id = %s", job["id"])
    return model


def notices(database, job):
    """Return what a job has told its session, in order."""
    rows = database.execute(
        "SELECT detail ->> 'message' AS said FROM tensile.job_events"
        " WHERE job_id = %s AND kind = 'notice' ORDER BY id",
        job["id"],
    )
    return [row["said"] for row in rows]


def trained(database, source="points", **request):
    """Train to the end; return the job's row."""
    row = database.wait(database.submit(source, **request))
    assert row["state"] == "succeeded", row["error_message"]
    return row


def refused(database, source, **request):
    """Train what a worker must refuse; return SQLSTATE and message."""
    row = database.wait(database.submit(source, **request))
    assert row["state"] == "failed"
    return row["error_sqlstate"], row["error_message"]
