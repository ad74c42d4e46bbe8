"""Planning with little effort, for tests of what must hold however good a plan is."""

import pytest

from tensile_db.scheduler.analysis.once import forget_all
from tensile_db.scheduler.choosing import search
from tensile_db.scheduler.policies import relief


@pytest.fixture(scope="module")
def little_effort():
    """Have searches and relief look at a tenth of what they usually do: the same code, in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_LOOKS", search._LOOKS // 10)
        patch.setattr(relief, "_RUNS_AN_EFFORT", relief._RUNS_AN_EFFORT // 10)
        # Splits that were found before are of another effort, and so are those that are found now.
        forget_all()
        yield
        forget_all()
