"""A worker's state machine, empty and with a job that runs."""

import pytest

from tests.played.told_worker import A, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def one_running(worker: Worker) -> Worker:
    """Job A runs by planning 1 with 80 of 100 bytes."""
    worker.ready(A)
    worker.plans(1, A=80)
    worker.adopted(A, 1)
    return worker
