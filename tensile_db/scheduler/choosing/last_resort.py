"""The last resort of the published policies: both ways to meet a budget by swaps that may stall.

Neither is theirs, for the papers swap on demand at run time.  Which of the two is faster depends on the job,
so that a policy plans both and keeps the better: else it would be judged by our choice, not by its own.
"""

from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.furthest import evict_furthest
from tensile_db.scheduler.choosing.passive import evict_to_budget


def within_budget(
    residency: Residency, link: Link, budget_nbytes: int, *, both: bool = True
) -> list[Residency]:
    """Return what is planned within the budget: one where that is met already, else one by each way.

    There is none where recomputations, which keep what they read, leave no room.  The residency given may
    have been changed.

    both: False: the first way alone, least stall for the bytes first.
    """
    if residency.peak_nbytes <= budget_nbytes:
        return [residency]
    other = residency.copy() if both else None
    found = [residency] if evict_to_budget(residency, link, budget_nbytes) else []
    if other is not None and evict_furthest(other, budget_nbytes):
        found.append(other)
    return found
