"""Which ops of a job are split: the splits with which `auto` makes the fastest plan of it.

Sets of splits are looked for with which no op needs more than a share of the budget, once among those that
keep every bit, once among all; with each of them, and with none, the job is planned in a hurry, and with the
few that promise most, and the likeliest that keep every bit unless they are far behind, again, with searches,
relief and one round of both (`choosing/search.py`, `relief.py`, `stalled.py`): what is faster before that
need not be so after it.  The fastest plan tells which to take.  Of plans that take about as long, one that
keeps the bits is taken.

Source: ours; TSPLIT section IV for the splits.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import itemgetter

from tensile_db.errors import DoesNotFit
from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.plan import DeviceSpec, Rewriting, Split
from tensile_db.scheduler.policies import tsplit, vanilla
from tensile_db.scheduler.policies.alone import period_ns, plan_within
from tensile_db.scheduler.policies.packing import likely_packed, worth_packing
from tensile_db.scheduler.request import JobRequest, SplitsWithin
from tensile_db.scheduler.splitting.choice import Splitter
from tensile_db.scheduler.splitting.fitting import fitting_splits
from tensile_db.scheduler.splitting.latencies import as_split, unmeasured_latencies_ns
from tensile_db.scheduler.splitting.refusal import split_hint
from tensile_db.scheduler.splitting.ways import keep_bits

#: No op may need more than these shares of the budget: what is left is for tensors that idle meanwhile.
_ROOM = (0.75, 0.5, 0.35)
_ROOM_KEEPING_BITS = (0.75, 0.5)
#: Of graphs with few ops, where each op is a large part of the whole, and planning takes little.
_ROOM_OF_FEW = (0.95, 0.85, 0.75, 0.65, 0.55, 0.45)
#: Splits are looked for where some op needs more than this share of the memory ...
_TIGHT = 0.45
#: ... and a plan of whole ops takes more than so many times the ops' time.
_WORTH_SPLITTING = 1.01
#: And where one needs more than this share ...
_LESS_TIGHT = 0.3
#: ... and a quick plan of whole ops takes more than so many times that.
_SLOW = 1.15
#: Splits that change the order of sums must save so much of the time.
_WORTH_THE_BITS = 0.98
#: Sets that are planned again with care: those whose hurried plans are fastest, at most so many, one that
#: keeps the bits, and the empty one; but none whose hurried plan takes more than so many times the fastest
#: one's time.
_PLANNED_WITH_CARE = 2
_PLANNED_WITH_CARE_OF_FEW = 4
_MAY_BE_FASTER = 1.2
#: Ops that are looked at for each of those shares: looking costs more than planning.
_LOOKS = 12
#: Graphs with no more ops have few.
_FEW_OPS = 200
#: TSPLIT's own choices are tried, too, of graphs with no more ops.
_TSPLIT_OPS = 600


def splits_for(job: JobRequest, limit_nbytes: int, *, keeps_bits: bool = False) -> Rewriting:
    """Return the splits of a job that never has more memory than the limit, as `find_splits` finds them.

    Raises DoesNotFit, with the least memory that would do, where splitting does not suffice.
    """
    found = job.found_splits
    if found is None or found.limit_nbytes != limit_nbytes:
        found = find_splits(job.graph, limit_nbytes, keeps_bits=keeps_bits)
    if found.least_nbytes is not None:
        hint = split_hint(job.graph, limit_nbytes, keeps_bits=keeps_bits)
        raise DoesNotFit(needed_nbytes=found.least_nbytes, budget_nbytes=limit_nbytes, hint=hint)
    return found.rewriting


def find_splits(graph: StepGraph, limit_nbytes: int, *, keeps_bits: bool = False) -> SplitsWithin:
    """Look for the splits of a job that never has more memory than the limit; worked out once.

    They depend on graph and limit alone, neither on what was measured nor on what else runs, for a job's
    results are its own: what is faster is judged by the rates of one machine, the RTX A6000.  They are looked
    for in the graph with tensors packed, where that makes the faster plan of whole ops, or no whole op fits.
    keeps_bits: only splits that change no result.
    """
    return _find_splits(graph, limit_nbytes, keeps_bits)


def are_worth_looking_for(graph: StepGraph, limit_nbytes: int) -> bool:
    """Whether `find_splits` has more to do than to see that there is nothing to gain."""
    whole_nbytes = vanilla.peak_nbytes(graph)
    return whole_nbytes > limit_nbytes and lower_bound_peak_nbytes(graph) > _LESS_TIGHT * limit_nbytes


def needed_splits(graph: StepGraph, limit_nbytes: int, *, keeps_bits: bool = False) -> Rewriting:
    """Return splits like `splits_for`, but only of ops that need more than the limit."""
    if lower_bound_peak_nbytes(graph) <= limit_nbytes:
        return Rewriting()
    return packed_or_not(
        worth_packing(graph), lambda packed: _needed_with(graph, packed, limit_nbytes, keeps_bits=keeps_bits)
    )


def _needed_with(
    graph: StepGraph, packed: tuple[TensorId, ...], limit_nbytes: int, *, keeps_bits: bool
) -> Rewriting:
    request, device = _by_reference(graph, packed, limit_nbytes)
    splits: tuple[Split, ...] = ()
    if lower_bound_peak_nbytes(request.graph) > limit_nbytes:
        splits = fitting_splits(request, device, limit_nbytes, keeps_bits=keeps_bits)
    return Rewriting(packed=packed, splits=splits)


def packed_or_not(
    packed: tuple[TensorId, ...], look: Callable[[tuple[TensorId, ...]], Rewriting]
) -> Rewriting:
    """Look for splits with these tensors packed; where none suffice, for some codes cannot be cut, without.

    Raises DoesNotFit, with the least memory that would do in either way.
    """
    refusals: list[DoesNotFit] = []
    for choice in dict.fromkeys((packed, ())):
        try:
            return look(choice)
        except DoesNotFit as refusal:
            refusals.append(refusal)
    raise min(refusals, key=lambda refusal: refusal.needed_nbytes)


@once_for_each
def _find_splits(graph: StepGraph, limit_nbytes: int, keeps_bits: bool) -> SplitsWithin:
    if not are_worth_looking_for(graph, limit_nbytes):
        return SplitsWithin(limit_nbytes=limit_nbytes, splits=())
    captured, device = _by_reference(graph, (), limit_nbytes)
    packed = likely_packed(captured, device, limit_nbytes, 1)
    try:
        found = packed_or_not(
            packed, lambda choice: _fastest_with(graph, choice, limit_nbytes, keeps_bits=keeps_bits)
        )
    except DoesNotFit as refusal:
        return SplitsWithin(limit_nbytes=limit_nbytes, splits=(), least_nbytes=refusal.needed_nbytes)
    if not found.splits and lower_bound_peak_nbytes(graph) <= limit_nbytes:
        found = Rewriting()
    return SplitsWithin(limit_nbytes=limit_nbytes, packed=found.packed, splits=found.splits)


def _fastest_with(
    graph: StepGraph, packed: tuple[TensorId, ...], limit_nbytes: int, *, keeps_bits: bool
) -> Rewriting:
    request, device = _by_reference(graph, packed, limit_nbytes)
    tight = lower_bound_peak_nbytes(request.graph) > _TIGHT * limit_nbytes
    splits: tuple[Split, ...] = ()
    if tight or _is_slow_whole(request, device, limit_nbytes):
        splits = fastest_splits(request, device, limit_nbytes, 1, keeps_bits=keeps_bits)
    return Rewriting(packed=packed, splits=splits)


def _is_slow_whole(request: JobRequest, device: DeviceSpec, limit_nbytes: int) -> bool:
    """Whether a quick plan of whole ops, which need less than the limit, is slow."""
    plan = plan_within(replace(request, at_once=True), Rewriting(), device, limit_nbytes, 1)
    return period_ns(request, plan, device) > _SLOW * sum(request.latencies_ns)


def _by_reference(
    graph: StepGraph, packed: tuple[TensorId, ...], limit_nbytes: int
) -> tuple[JobRequest, DeviceSpec]:
    """Return a job with tensors of its graph packed, on the device by which splits are judged."""
    device = replace(machine("sim:a6000"), memory_nbytes=limit_nbytes)
    latencies_ns = unmeasured_latencies_ns(graph, device)
    return as_packed(JobRequest(job_id=0, graph=graph, latencies_ns=latencies_ns), packed, device), device


def fastest_splits(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int, *, keeps_bits: bool = False
) -> tuple[Split, ...]:
    """Return the splits, maybe none, of the fastest plan of one of `sharers` jobs.

    Raises DoesNotFit, with the least memory that would do, where splitting does not suffice.
    """
    # Results depend on what is split, and so not on whether somebody waits for the first iteration.
    request = replace(request, former=None, at_once=False)
    ops_ns = sum(request.latencies_ns)
    in_a_hurry = replace(request, hurried=True)
    found: list[tuple[int, tuple[Split, ...]]] = []
    for splits in _sets_of_splits(request, device, budget_nbytes, sharers, keeps_bits=keeps_bits):
        judged_ns = _judged_ns(in_a_hurry, splits, device, budget_nbytes, sharers)
        found.append((judged_ns, splits))
        if judged_ns <= _WORTH_SPLITTING * ops_ns and keep_bits(request.graph, splits):
            break
    # Of equal ones, what was tried first.
    found.sort(key=itemgetter(0))
    fastest_ns, fastest = found[0]
    if request.hurried or sharers > 1:
        return fastest
    likely = [splits for judged_ns, splits in found if judged_ns <= _MAY_BE_FASTER * fastest_ns]
    has_few = len(request.graph.ops) <= _FEW_OPS
    chosen = likely[: _PLANNED_WITH_CARE_OF_FEW if has_few else _PLANNED_WITH_CARE]
    keeping = [splits for splits in likely if keep_bits(request.graph, splits)]
    if not any(splits in keeping for splits in chosen):
        # Bits are lost only for what is faster with care, too.
        chosen += keeping[:1]
    if () in likely and () not in chosen:
        # A plan made in a hurry does not show what farther recomputations bring, mostly to whole ops.
        chosen.append(())
    if len(chosen) == 1:
        return fastest
    with_care = [(_judged_ns(request, splits, device, budget_nbytes, sharers), splits) for splits in chosen]
    return min(with_care, key=itemgetter(0))[1]


def _judged_ns(
    request: JobRequest, splits: tuple[Split, ...], device: DeviceSpec, budget_nbytes: int, sharers: int
) -> int:
    """Return the time of a plan of the job with these splits; more than that where bits are lost."""
    split = as_split(request, splits, device)
    plan = plan_within(split, Rewriting(splits=splits), device, budget_nbytes, sharers, is_compared=True)
    took_ns = period_ns(split, plan, device)
    return took_ns if keep_bits(request.graph, splits) else int(took_ns / _WORTH_THE_BITS)


def _rooms(graph: StepGraph, *, keeping: bool) -> tuple[float, ...]:
    """Return the shares of the budget that sets of splits are looked for in."""
    if not keeping:
        return _ROOM
    return _ROOM_OF_FEW if len(graph.ops) <= _FEW_OPS else _ROOM_KEEPING_BITS


def _sets_of_splits(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int, *, keeps_bits: bool
) -> Iterator[tuple[Split, ...]]:
    """Yield sets of splits with which no op needs more than the budget, each once."""
    graph = request.graph
    whole_nbytes = lower_bound_peak_nbytes(graph)
    # Others count on a job's needing no more than its whole ops do.
    most_nbytes = min(budget_nbytes, whole_nbytes)
    first: tuple[Split, ...] = ()
    if whole_nbytes > budget_nbytes:
        first = fitting_splits(request, device, budget_nbytes, keeps_bits=keeps_bits)
    yield first
    found = [first]
    for keeping in (True,) if keeps_bits else (True, False):
        splitter = Splitter(request, device, keeps_bits=keeping)
        for room in _rooms(graph, keeping=keeping):
            room_nbytes = int(room * budget_nbytes)
            splits, needed_nbytes = splitter.splits_within(room_nbytes, most_nbytes, _LOOKS)
            if needed_nbytes <= most_nbytes and splits not in found:
                found.append(splits)
                yield splits
    if not keeps_bits and len(graph.ops) <= _TSPLIT_OPS:
        splits = tsplit.plan_one(request, device, budget_nbytes, sharers, both=False).splits
        if splits not in found:
            yield splits
