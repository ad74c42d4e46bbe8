"""A worker's postman, without the rest of the worker."""

import pytest

from tensile_db.worker.serving.postman import Postman
from tests.fixtures.db import PUPPET_LOGIN


@pytest.fixture
def postman(site):
    postman = Postman(site.dsn(PUPPET_LOGIN))
    postman.start()
    yield postman
    postman.stop()
