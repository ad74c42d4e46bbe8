"""A worker that is killed while it trains large networks on real images: they go on bit for bit.

That small ones do is always tried, by tests/db/workers/test_crash.py.
"""

import os
import signal

import psycopg
import pytest

from tensile_db.demo.images import as_png, load_images
from tests.patience import wait_until

ROWS = 20
REQUEST = {
    "features": ["image"],
    "batch_size": 4,
    "optimizer": "adam",
    "learning_rate": 0.001,
    "validation": 0.2,
}
BATCHES = 4
#: Batch norm and dropout; attention and AdamW.  The one that is fast trains as long as the other.
JOBS = {
    "resnet50": {"epochs": 2, "options": {"dropout": 0.3, "checkpoint_iterations": 3, "image_size": 64}},
    "vit_tiny_patch16_224": {
        "epochs": 8,
        "optimizer": "adamw",
        "options": {"checkpoint_iterations": 8, "image_size": 64},
    },
}
#: Well below the sum of the eager peaks, about 460 MiB.
MEMORY_NBYTES = 128 * 2**20


@pytest.fixture
def images(database):
    """Table of anna's with real images in PNG."""
    found = load_images(ROWS)
    rows = [(i, as_png(found.pixels[i]), found.labels[i]) for i in range(ROWS)]
    database.execute("CREATE TABLE images (id int PRIMARY KEY, image bytea, label text)")
    with psycopg.connect(database.admin) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO images VALUES (%s, %s, %s)", rows)
    database.execute("ALTER TABLE images OWNER TO anna")
    return "images"


def submit_all(database, images):
    return [
        database.submit(images, architecture=architecture, model=architecture, **(REQUEST | changes))
        for architecture, changes in JOBS.items()
    ]


def is_past_a_checkpoint(database, job):
    """Whether the job has left work behind that a crash would cost it."""
    (row,) = database.execute(
        "SELECT iteration > (SELECT max(iteration) FROM tensile.checkpoints WHERE job_id = j.id AND complete)"
        " AS past FROM tensile.jobs j WHERE id = %s",
        job,
    )
    return bool(row["past"])


@pytest.mark.thorough
def test_networks_of_a_killed_worker_go_on_from_the_catalog_bit_for_bit(
    database, images, start_worker, start_forked
):
    undisturbed = start_worker(memory_nbytes=MEMORY_NBYTES)
    expected = submit_all(database, images)
    assert [database.wait(job)["state"] for job in expected] == ["succeeded"] * 2
    database.let_go(undisturbed)

    supervisor = start_forked(memory_nbytes=MEMORY_NBYTES)
    resumed = submit_all(database, images)
    wait_until(
        lambda: all(is_past_a_checkpoint(database, job) for job in resumed),
        lambda: database.execute("SELECT * FROM tensile.job_events"),
    )
    # A worker that was about to stop may have claimed one and given it back.
    attempts = [database.job(job)["attempt"] for job in resumed]
    os.kill(supervisor.worker_pid, signal.SIGKILL)
    swapped = []
    for job, undisturbed_job, request, attempt in zip(
        resumed, expected, JOBS.values(), attempts, strict=True
    ):
        row = database.wait(job)
        iterations = BATCHES * request["epochs"]
        assert (row["state"], row["attempt"], row["iteration"]) == ("succeeded", attempt + 1, iterations)
        assert database.weights(job) == database.weights(undisturbed_job)
        assert losses(database, job) == losses(database, undisturbed_job)
        plans = database.execute(
            "SELECT version, reason, swap_nbytes FROM tensile.plans WHERE job_id = %s ORDER BY version", job
        )
        assert [(plan["version"], plan["swap_nbytes"]) for plan in plans] == swapped_by_events(database, job)
        assert "resume" in {plan["reason"] for plan in plans}
        swapped.append(max(plan["swap_nbytes"] for plan in plans))
    # The smaller one may have room enough for itself in its turns.
    assert max(swapped) > 0
    (held,) = database.execute("SELECT max(device_peak_nbytes) AS nbytes FROM tensile.memory_peaks")
    assert held["nbytes"] <= MEMORY_NBYTES


def swapped_by_events(database, job):
    """Return what each plan's copies to the host come to, as docs/sql/catalog.md says how to ask."""
    rows = database.execute(
        "SELECT version, coalesce(sum(nbytes) FILTER (WHERE kind = 'swap_out' AND begin_ns < end_ns), 0)"
        " AS sum"
        " FROM tensile.plans p JOIN tensile.plan_events e USING (job_id, version)"
        " JOIN tensile.graph_tensors t ON (t.digest, t.tensor_id) = (p.graph_digest, e.tensor)"
        " WHERE job_id = %s GROUP BY version ORDER BY version",
        job,
    )
    return [(row["version"], row["sum"]) for row in rows]


def losses(database, job):
    return database.execute(
        "SELECT epoch, split, metric, value FROM tensile.training_metrics WHERE job_id = %s"
        " ORDER BY epoch, split, metric",
        job,
    )
