import pytest

from tensile_db.bench.networks.captures import Captures


@pytest.fixture(scope="session")
def captures(tmp_path_factory):
    """Captures that the tests of a session share."""
    return Captures(folder=tmp_path_factory.mktemp("captures"))
