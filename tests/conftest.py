"""Tiers by folder, throw-away databases on a throw-away PostgreSQL, and no garbage of what is imported.

The server is the project's own `LocalCluster`, since a server does not run as root and tests often do.
"""

import gc
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tensile_db.local import LocalCluster
from tensile_db.worker.openmp import wait_briefly
from tests import throw_away
from tests.examples import PROFILES, runs_all

# Once for all tiers: a fixture imported in two places is two fixtures.
pytest_plugins = (
    "tests.fixtures.db",
    "tests.fixtures.sources",
    "tests.fixtures.device",
    "tests.fixtures.worker",
    "tests.fixtures.claims",
    "tests.fixtures.late_workers",
    "tests.fixtures.moved",
    "tests.fixtures.pauses",
    "tests.fixtures.drafts",
    "tests.fixtures.effort",
    "tests.fixtures.graphs",
    "tests.fixtures.own_modules",
    "tests.fixtures.uninterrupted",
)

# Tests run beside each other.
wait_briefly()

TIERS = ("unit", "db", "e2e", "gpu")

for name in PROFILES:
    settings.register_profile(name)

_numbers = itertools.count(1)


def pytest_collection_modifyitems(config, items):
    """Leave out what is for `make thorough`; mark tests with their tiers, the folders that they lie in."""
    if not runs_all():
        left_out = {item for item in items if item.get_closest_marker("thorough")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    root = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(root).parts[0]
        if tier in TIERS:
            item.add_marker(tier)


def pytest_collection_finish(session):
    """Keep what is imported out of garbage collections, which would take a seventh of a plan's time.

    Ends the run where pytest-xdist, which tells a group by its tests' ids, would send it to many processes.
    """
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rpartition("]")[2]:
                session.shouldfail = (
                    f"with this pytest, pytest-xdist does not know the group of {item.nodeid}"
                )
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Let the process's end tidy up all the same."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def server_folder():
    """A folder that the server's user can reach, even when root runs the tests."""
    with throw_away.server_folder("tensile-test-") as folder:
        yield folder


@pytest.fixture(scope="session")
def cluster(server_folder):
    """A running server of this test run; roles made in it last until the run's end."""
    cluster = LocalCluster(server_folder, durable=False)
    cluster.create()
    with (cluster.data / "postgresql.conf").open("a") as settings:
        settings.write("max_prepared_transactions = 4\n")
    cluster.start()
    yield cluster
    cluster.remove()


@pytest.fixture
def empty_database(cluster):
    """Connection string (superuser) of a database of this test's own, with nothing in it."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with throw_away.copied_database(cluster, name, "template0") as dsn:
        yield dsn
