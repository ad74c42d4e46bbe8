"""Models that a user's sessions ask for rows, and the worker that serves them."""

from tests.jobs.picture_jobs import NETWORK

RESNET = NETWORK | {"model": "pictures"}


def restarted(client, start, **settings):
    """Start another worker in the place of the client's."""
    client.database.let_go(client.worker)
    worker = start(**settings)
    client.database.wait_for_worker()
    return worker
