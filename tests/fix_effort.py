"""Planning with little effort, for tests of what must hold however good a plan is."""

import pytest

from tensile_db.scheduler.analysis.once import forget_all
from tensile_db.scheduler.choosing import search
from tensile_db.scheduler.policies import alone, attempts, drafts, in_parts, op_orders, relief, stalled
from tensile_db.scheduler.policies.farther import GLANCE


@pytest.fixture(scope="module")
def little_effort():
    """Have searches and relief look at little of what they usually do: the same code, in less time.

    Searches take one part of the stalls for time of copies and go on for two rounds, fewer ways are tried,
    and fewer orders in which large gradients wait; only the smallest graphs are planned for less memory, too,
    and farther recomputations are looked for at a glance.
    Of sets of splits, of which small graphs have no more than others, fewer are looked for, and those planned
    with care alone whose hurried plan is fastest, and fastest among those that keep the bits.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_LOOKS", search._LOOKS // 10)
        patch.setattr(relief, "_RUNS_AN_EFFORT", relief._RUNS_AN_EFFORT // 40)
        patch.setattr(stalled, "_STALLS_LEFT", (0.5,))
        patch.setattr(stalled, "_ROUNDS", 2)
        patch.setattr(attempts, "_EFFORT_OPS", attempts._EFFORT_OPS // 100)
        patch.setattr(alone, "_FEW_OPS", 150)
        patch.setattr(alone, "THOROUGH", GLANCE)
        patch.setattr(drafts, "_ROUNDS", 2)
        patch.setattr(op_orders, "_LATE", (0.2,))
        patch.setattr(op_orders, "_LATE_APART", (0.2,))
        patch.setattr(in_parts, "_ROOM", (0.75, 0.5))
        patch.setattr(in_parts, "_PLANNED_WITH_CARE", 1)
        patch.setattr(in_parts, "_FEW_OPS", 0)
        # Splits that were found before are of another effort, and so are those that are found now.
        forget_all()
        yield
        forget_all()
