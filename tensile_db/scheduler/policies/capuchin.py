"""Capuchin: tensors that idle at the peak are swapped while that hides, then swapped or recomputed by cost.

Source: Capuchin sections 4.2 to 4.5, algorithms 1 and 2, and 5.3. Accesses of all tensors in order are known;
candidates are tensors accessed more than once whose idle stretch overlaps the ops at which memory is short.
- Swaps first, longest free time FT (equation 1) first, as long as both copies hide.
- Then, one by one, the smaller overhead of two: of the swap that costs least, and of the recomputation of the
  largest MSPS (`choosing/msps.py`).
- Recomputation is done where the tensor is needed; what it passes through and is wanted later stays if
  memory allows (collective recomputation). Copies are decoupled: an op waits for a departure only when
  memory is short. In-triggers move earlier by feedback (`settling/feedback.py`).
- What memory is still short of is swapped on demand (passive mode).
Differs:
- Accesses and times are read off the graph and the predicted latencies; the paper's come from an iteration in
  passive mode.  Passive swaps are planned too, so that the guaranteed peak holds, in two ways, of which the
  faster counts (`choosing/last_resort.py`).
- "Hides" is judged by free stretches of the channels, not by FT alone: the paper notes that a copy waits for
  the one before it, and leaves that to the feedback.
- The memory that must be saved is counted op by op, not as one sum.
- Parameters, buffers and optimizer state stay on the device; the paper sees no tensor across iterations.
- Tensors of less than 1/4000 of the budget stay, but for passive swaps.
- A plan is made for a budget: when everything fits, nothing is swapped or recomputed, as in the paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.hybrid import Selection
from tensile_db.scheduler.choosing.last_resort import within_budget
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later
from tensile_db.scheduler.settling.collective import plan_collectively
from tensile_db.scheduler.settling.feedback import trigger_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.shares import plan_within_shares
from tensile_db.scheduler.timeline import fastest, settle, simulate

#: Rounds of feedback; the paper's policy settles within 50 iterations, of one step each.
FEEDBACK_ROUNDS = 4
#: Times that tensors are selected anew because recomputation itself takes memory, and that recomputations in
#: the way of passive swaps are given up.
SELECTION_ROUNDS = 4

_HINT = (
    "Capuchin keeps parameters and optimizer state on the device: use the policy auto, or smaller batches."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanisms:
    """What the paper takes apart in section 6.2; a plan has them all unless it is for a comparison."""

    swap: bool = True
    recompute: bool = True
    feedback: bool = True
    collective: bool = True


_ALL = Mechanisms()


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job for its share of the memory.

    Raises DoesNotFit where a share is below what stays on the device and the largest op.
    """
    return plan_within_shares(jobs, device, memory_nbytes, plan_one, least_nbytes, _HINT)


def least_nbytes(graph: StepGraph) -> int:
    """Return the least budget: all persistent tensors, and all else that a single op needs."""
    tensors = graph.tensors
    return sum(t.nbytes for t in tensors if t.persistent) + max(
        sum(tensors[t].nbytes for t in {*op.reads, *op.writes} if not tensors[t].persistent)
        + op.workspace_nbytes
        for op in graph.ops
    )


def plan_one(
    request: JobRequest,
    device: DeviceSpec,
    budget_nbytes: int,
    sharers: int,
    mechanisms: Mechanisms = _ALL,
) -> Plan:
    """Plan a job for a budget of at least `least_nbytes`, sharing the link evenly."""
    link = Link(device, sharers)
    plans = [
        _settled(request, residency, link, device, budget_nbytes, mechanisms)
        for residency in _planned(request, link, budget_nbytes, mechanisms)
    ]
    return fastest(request.graph, request.latencies_ns, plans, device)


def _settled(
    request: JobRequest,
    residency: Residency,
    link: Link,
    device: DeviceSpec,
    budget_nbytes: int,
    mechanisms: Mechanisms,
) -> Plan:
    """Move triggers by feedback; then wait for departures as late as memory allows."""
    for _ in range(FEEDBACK_ROUNDS if mechanisms.feedback else 0):
        timeline = simulate(request.graph, request.latencies_ns, assemble(residency, "capuchin"), device)
        if not trigger_earlier(residency, link, timeline, budget_nbytes):
            break
    made = settle(request.graph, request.latencies_ns, assemble(residency, "capuchin"), device)
    timeline = simulate(request.graph, request.latencies_ns, made, device)
    follow_timeline(residency, timeline, duplex=device.duplex)
    # An op waits for a departure only where memory is short.
    await_later(residency, budget_nbytes)
    return assemble(residency, "capuchin")


def _new(request: JobRequest) -> Residency:
    residency = Residency(request.graph, request.latencies_ns)
    residency.pinned.update(tensor.id for tensor in request.graph.tensors if tensor.persistent)
    return residency


def _planned(request: JobRequest, link: Link, budget_nbytes: int, mechanisms: Mechanisms) -> list[Residency]:
    """Return the states after both phases of algorithm 1 and passive swaps; all meet the budget."""

    def plan_choices() -> Residency:
        fresh = (_new(request), _new(request))
        return plan_collectively(
            fresh,
            selection.swaps,
            selection.recomputed,
            budget_nbytes,
            collective=mechanisms.collective,
        )

    selection = Selection(
        _new(request),
        request.latencies_ns,
        link,
        budget_nbytes,
        swaps=mechanisms.swap,
        recomputes=mechanisms.recompute,
    )
    for _ in range(SELECTION_ROUNDS):
        selection.swap_what_hides()
        selection.swap_or_recompute()
        planned = plan_choices()
        selection.continue_from(planned)
        if planned.peak_nbytes <= budget_nbytes:
            return [planned]
    for _ in range(SELECTION_ROUNDS):
        if met := within_budget(planned, link, budget_nbytes):
            return met
        selection.give_up_at(planned, planned.peak_position)
        planned = plan_choices()
    # Recomputations keep their sources; without them passive swaps reach the bound.
    selection.recomputed.clear()
    planned = plan_choices()
    met = within_budget(planned, link, budget_nbytes)
    assert met, "passive swaps reach every budget above the bound"
    return met
