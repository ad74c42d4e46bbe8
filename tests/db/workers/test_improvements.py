"""Plans and lanes made at once while somebody waits, and made better afterwards, on a real worker."""

import pytest

from tests.jobs.picture_jobs import NETWORK, cancel, is_training, vanilla_nbytes

ENDLESS = 10**6
#: Whether anything is better than what was made at once depends on what ops take on this machine, so jobs
#: arrive until something was; each stays for so many iterations of the first.
ARRIVALS = 12
STAYS = 100


def plans(database, job):
    return database.execute(
        "SELECT reason, adopted_at_iteration FROM tensile.plans WHERE job_id = %s ORDER BY version", job
    )


def improved_at(database, job):
    """Return the iterations from which on the job has run by better plans."""
    return [row["adopted_at_iteration"] for row in plans(database, job) if row["reason"] == "improvement"]


def let_another_arrive_and_leave(database, first):
    other = database.submit("pictures", epochs=ENDLESS, **NETWORK)
    database.wait_until(other, is_training)
    left_at = database.job(first)["iteration"] + STAYS
    database.wait_until(first, lambda row: row["iteration"] > left_at or improved_at(database, first))
    assert cancel(database, other) == ["cancelled"]


@pytest.mark.thorough
def test_what_was_made_at_once_for_an_arrival_is_made_better_and_the_bits_stay(database, start_worker):
    memory_nbytes = int(1.1 * vanilla_nbytes(database, start_worker))
    worker = start_worker(memory_nbytes=memory_nbytes)
    first = database.submit("pictures", epochs=ENDLESS, **NETWORK)
    database.wait_until(first, is_training)
    arrivals = 0
    while not improved_at(database, first):
        arrivals += 1
        assert arrivals <= ARRIVALS, plans(database, first)
        let_another_arrive_and_leave(database, first)
    (begun, *_) = improved_at(database, first)
    database.wait_until(first, lambda row: row["iteration"] > begun)
    worker.stop()
    row = database.wait_until(first, lambda row: row["state"] == "queued")
    epochs = row["epoch"] + 1
    database.execute("UPDATE tensile.jobs SET epochs = %s WHERE id = %s", epochs, first)
    start_worker(memory_nbytes=memory_nbytes)
    assert database.wait(first)["state"] == "succeeded"
    alone = database.submit("pictures", epochs=epochs, **NETWORK)
    assert database.wait(alone)["state"] == "succeeded"
    assert database.weights(first) == database.weights(alone)
