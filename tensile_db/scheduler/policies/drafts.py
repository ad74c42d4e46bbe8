"""What is chosen for one order of a job's ops, and the plan that is made of it.

Source: ours; docs/planner.md, "auto".
"""

from dataclasses import dataclass

from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.ways import Way
from tensile_db.scheduler.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan that meets the budget, and the time of an iteration by it."""

    plan: Plan
    period_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is chosen for one order of the ops, before its copies are put in step with their timeline."""

    residency: Residency
    link: Link
    way: Way
    #: Whether no op waits for a copy, as far as can be told yet.
    hides: bool
    #: The time of all ops and recomputations.
    least_ns: int

    def promise(self) -> tuple[bool, int]:
        """Return by what drafts are sorted, the most promising first."""
        return not self.hides, self.least_ns

    def may_beat(self, made: Made | None) -> bool:
        """Return whether its plan could be faster: it takes no less time than its ops do."""
        return made is None or self.least_ns < made.period_ns


def faster(known: Made | None, made: Made) -> Made:
    """Return the faster of two plans; the one known before where both take as long."""
    return made if known is None or made.period_ns < known.period_ns else known
