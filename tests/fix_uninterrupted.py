"""A training that nothing interrupts, for what interrupted ones must come to."""

import pytest

from tests import ended_jobs


@pytest.fixture(scope="module")
def reference():
    """The weights of the module's training, bytes by name and part, once they are trained."""
    return {}


def trained_once(reference, database, start, training):
    """Return the weights, trained where they are not yet, by a worker that is gone afterwards."""
    if not reference:
        worker = start()
        job = ended_jobs.trained(database, **training)
        reference.update(database.weights(job["id"]))
        database.let_go(worker)
    return reference
