"""Judges a plan that somebody else made: whether it loses nothing, what it holds, how long it takes.

Source: ours; docs/plan_format.md, "Checking a plan".
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tensile_db.errors import InvalidPlan
from tensile_db.graph import TensorId
from tensile_db.scheduler.bounds import time_of_ops_ns
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting, SwapOut, swaps_by_trigger
from tensile_db.scheduler.plan_json import schedule_to_json
from tensile_db.scheduler.plan_reading import ReadPlan, schedule_from_json
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.rewriting_reading import rewriting_from_json
from tensile_db.scheduler.timeline import Timeline, simulate
from tensile_db.scheduler.untrusted_json import Json

_HINT = (
    "Instructions are what ops and events become, in the order in which they run; docs/plan_format.md says"
    " what events mean."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A valid plan's figures; sizes in bytes, times in ns."""

    timeline: Timeline
    guaranteed_peak_nbytes: int
    #: What eager holds and takes; None where neither the graph nor the document says so.
    vanilla_peak_nbytes: int | None
    vanilla_time_ns: int | None

    @property
    def needed_nbytes(self) -> int:
        """Memory that suffices: the guaranteed peak, or what the clock sees where delays are too short."""
        return max(self.guaranteed_peak_nbytes, self.timeline.peak_nbytes)

    @property
    def figures(self) -> dict[str, Any]:
        """The figures, named as those of `predicted` (`plan_json.py`)."""
        peak_nbytes, time_ns = self.timeline.peak_nbytes, self.timeline.period_ns
        msr = eor = None
        if self.vanilla_peak_nbytes:
            msr = (self.vanilla_peak_nbytes - peak_nbytes) / self.vanilla_peak_nbytes
        if self.vanilla_time_ns:
            eor = time_ns / self.vanilla_time_ns
        return {
            "vanilla_peak_nbytes": self.vanilla_peak_nbytes,
            "peak_nbytes": peak_nbytes,
            "guaranteed_peak_nbytes": self.guaranteed_peak_nbytes,
            "vanilla_time_ns": self.vanilla_time_ns,
            "time_ns": time_ns,
            "msr": msr,
            "eor": eor,
            "cbr": None if msr is None or eor is None else msr / eor,
        }


def check(read: ReadPlan) -> Checked:
    """Lower, verify and simulate a plan.  Raises InvalidPlan, which names the first thing that is wrong."""
    try:
        _check_list(read.plan, read.device)
        program = lower(read.graph, read.plan)
        timeline = simulate(read.graph, read.latencies_ns, read.plan, read.device)
        _check_turns(read.plan, timeline)
    except InvalidPlan as error:
        raise InvalidPlan(error.message, hint=_HINT) from None
    peak_nbytes: int | None
    time_ns: int | None
    if read.is_rewritten:
        # Eager runs the captured graph, of which only the predictions are told.
        told_nbytes, told_ns = (read.predicted.get(f"vanilla_{name}") for name in ("peak_nbytes", "time_ns"))
        peak_nbytes = None if told_nbytes is None else int(told_nbytes)
        time_ns = None if told_ns is None else int(told_ns)
    else:
        peak_nbytes, time_ns = vanilla.peak_nbytes(read.graph), time_of_ops_ns(read.latencies_ns)
    return Checked(
        timeline=timeline,
        guaranteed_peak_nbytes=program.guaranteed_peak_nbytes,
        vanilla_peak_nbytes=peak_nbytes,
        vanilla_time_ns=time_ns,
    )


def check_made(plan: Plan, job: JobRequest, device: DeviceSpec) -> Checked:
    """Judge a plan of a job, made in this process by code that is not ours, as if it had been read.

    Raises InvalidRequest, which names the place in it that says nothing, and what `check` raises.
    """
    schedule = Json({"plan": schedule_to_json(plan)})["plan"]
    planned = as_rewritten(job, rewriting_from_json(schedule, job.graph), device)
    return check(
        ReadPlan(
            graph=planned.graph,
            latencies_ns=tuple(planned.latencies_ns),
            device=device,
            plan=schedule_from_json(schedule, planned.graph, planned.latencies_ns, device),
            is_rewritten=plan.rewriting != Rewriting(),
            predicted={},
        )
    )


def _check_list(plan: Plan, device: DeviceSpec) -> None:
    """Raise InvalidPlan where a channel's copies are listed in another order than they are triggered in.

    A copy would wait for one behind it that is not triggered yet, and the op that needs it for that one's
    trigger, which may come only after the op.
    """
    place = {index: rank for rank, (index, _) in enumerate(swaps_by_trigger(plan))}
    last: dict[bool, int] = {}
    for index in sorted(place):
        event = plan.events[index]
        of_out = not device.duplex or isinstance(event, SwapOut)
        if place[index] < last.get(of_out, -1):
            raise InvalidPlan(
                f"plan.events[{index}] copies tensor {event.tensor} and is triggered before a copy of the"
                " same channel that is listed before it"
            )
        last[of_out] = place[index]


def _check_turns(plan: Plan, timeline: Timeline) -> None:
    """Raise InvalidPlan where a tensor's copies would begin in another order than they are triggered in.

    Instructions hand copies over as they are triggered; a clock heeds delays and the order listed, too.  Only
    where that comes to the same do the figures say what happens.
    """
    triggered: dict[TensorId, list[bool]] = defaultdict(list)
    for _, event in swaps_by_trigger(plan):
        triggered[event.tensor].append(isinstance(event, SwapOut))
    made: dict[TensorId, list[bool]] = defaultdict(list)
    for copy in timeline.copies:
        made[copy.tensor].append(copy.to_host)
    for tensor in sorted(triggered):
        if made[tensor] != triggered[tensor]:
            raise InvalidPlan(
                f"the copies of tensor {tensor} would begin in another order than they are triggered in, for"
                " their delays or their places in plan.events are in another one"
            )
