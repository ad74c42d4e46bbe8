"""A job's plan among others', and what it was made for."""

from dataclasses import dataclass
from math import inf

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan
from tensile_db.scheduler.sharing.laning import Grant
from tensile_db.scheduler.sharing.share import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What a job's plan was made for: what it is granted, and among whom."""

    #: Its link is what the job's lane has of it.
    device: DeviceSpec
    grant: Grant
    #: The jobs that were planned together, ascending.
    among: tuple[int, ...] = ()
    #: Of all of them when their lanes were chosen (`rounds.py`); inf: not known.
    slowdown: float = inf
    #: How many of them had to run at once then for the device to have no idle time.
    to_keep_busy: int = 1
    #: The lanes were chosen at once, and others may be better.
    quick: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """A job's plan, and what the job may hold while others take their turns."""

    job_plan: JobPlan
    share: Share
    within: Within


def share_of(plan: JobPlan, grant: Grant) -> Share:
    """Return what of the device a job may hold with a plan made for this grant."""
    at_begin_nbytes = plan.program.resident_nbytes
    resident_nbytes = at_begin_nbytes if grant.stays else min(grant.kept_nbytes, at_begin_nbytes)
    return Share(
        lane=grant.lane,
        resident_nbytes=resident_nbytes,
        ephemeral_nbytes=plan.budget_nbytes - resident_nbytes,
        transit_nbytes=at_begin_nbytes - resident_nbytes if grant.ahead else 0,
        iterations=grant.iterations,
    )
