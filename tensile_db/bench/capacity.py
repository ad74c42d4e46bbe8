"""The largest batch, or parameter scale at batch 16, that each policy can run in a device's memory.

By bisection; a policy runs what it can plan within the memory.  What single ops need tells first how far any
plan of whole ops can get, and any plan with the splits that keep a network's results.

Source: TSPLIT section VI-B, tables IV and V; Capuchin section 6.3.1 and table 2.
Differs: a parameter scale of k gives a layer's weights k * k times as many elements, as the text defines it.
The scales of TSPLIT's table V are, for convolutional networks and but for one cell, its table IV's batches
over 16 rounded down, to within one: as if weights took no memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.families import family
from tensile_db.bench.networks.workloads import workload
from tensile_db.bench.points import Subject, plan_one, subject
from tensile_db.bench.reports.known import check_alike
from tensile_db.errors import DoesNotFit, InvalidRequest
from tensile_db.graph import StepGraph
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Split
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.splitting.choice import Splitter, needs_nbytes
from tensile_db.scheduler.splitting.split_graph import split_graph

#: Of the parameter scales (TSPLIT table V).
SCALE_BATCH = 16
#: Policies whose plans of large batches take a minute and more: their largest is found to within this share.
_SPLITTING = ("auto", "auto_split", "tsplit")
_NEARLY = 0.05
#: More than any network's largest batch or scale here.
_MOST = 2**16


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str],
    policies: Sequence[str],
    optimizer: str,
    of_parameters: bool,
    bounds: bool = False,
    most: int = _MOST,
    known: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document.

    bounds: those of plans with splits, too, which may take hours; most: no larger size is tried; known: a
    document of which all that is not looked at is taken over.
    Raises InvalidRequest where that is of another device, optimizer or kind of size.
    """
    asked = {
        "bench": "capacity",
        "device": asdict(device),
        "workload": {"optimizer": optimizer},
        "of": "parameters" if of_parameters else "batch",
    }
    if known is not None:
        check_alike(known, asked, "optimizer", "of")
    rows = {} if known is None else _known_rows(known)
    for name in networks:
        graph_at = _graphs(captures, name, optimizer, of_parameters=of_parameters)
        told = partial(_tell_of, tell, name)
        found = _network(graph_at, device, policies, told, bounds=bounds, most=most)
        others = rows.get(name, {"policies": {}})
        rows[name] = others | found | {"policies": others["policies"] | found["policies"]}
    return asked | {
        "workload": {"networks": list(rows), "optimizer": optimizer},
        "rows": [{"network": name} | row for name, row in rows.items()],
    }


def _known_rows(known: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a document's rows by network, with what made each figure."""
    made = {"made": {"command": known["command"], "at": known["at"]}}
    return {
        row["network"]: row
        | {"policies": {policy: made | found for policy, found in row["policies"].items()}}
        for row in known["rows"]
    }


def _tell_of(tell: Callable[[str], None], network: str, policy: str) -> None:
    tell(f"{network}: {policy}")


def _network(
    graph_at: Callable[[int], StepGraph],
    device: DeviceSpec,
    policies: Sequence[str],
    tell: Callable[[str], None],
    *,
    bounds: bool,
    most: int,
) -> dict[str, Any]:
    @cache
    def job_at(size: int) -> Subject:
        return subject(graph_at(size), device)

    bound = largest(lambda size: lower_bound_peak_nbytes(graph_at(size)) <= device.memory_nbytes)
    split_bound = None
    if bounds:
        tell("splits")
        split_bound = _split_bound(job_at, bound)
    found: dict[str, Any] = {}
    for policy in policies:
        tell(policy)
        splits = policy in _SPLITTING
        guess = split_bound["largest"] if splits and split_bound is not None else bound
        within = _NEARLY if splits else 0.0
        found[policy] = _search(job_at, policy, min(guess, most), within=within, most=most)
    row = {"bound": bound, "policies": found}
    return row if split_bound is None else row | {"split_bound": split_bound}


def _split_bound(job_at: Callable[[int], Subject], bound: int) -> dict[str, Any]:
    """Return the largest size at which no op, split where it can be, needs more than the memory.

    And the op that does at the next size, with what it needs of it.
    """

    @cache
    def found(size: int) -> tuple[tuple[Split, ...], int]:
        job = job_at(size)
        request = JobRequest(job_id=1, graph=job.graph, latencies_ns=job.latencies_ns)
        return Splitter(request, job.device).splits_within(job.device.memory_nbytes)

    size = largest(lambda size: found(size)[1] <= job_at(size).device.memory_nbytes, guess=bound)
    graph = split_graph(job_at(size + 1).graph, found(size + 1)[0]).graph
    needs = needs_nbytes(graph)
    worst = max(graph.ops, key=lambda op: (needs[op.id], -op.id))
    return {"largest": size, "op": worst.target, "needed_nbytes": needs[worst.id]}


def _graphs(
    captures: Captures, name: str, optimizer: str, *, of_parameters: bool
) -> Callable[[int], StepGraph]:
    """Return what gives the graph for a batch, or for a parameter scale."""
    chosen = workload(name)
    if of_parameters:
        return lambda scale: captures.graph(chosen, SCALE_BATCH, optimizer, scale=scale)
    return family(lambda batch: captures.graph(chosen, batch, optimizer), name).at


def _search(
    job_at: Callable[[int], Subject], policy: str, bound: int, *, within: float, most: int
) -> dict[str, Any]:
    """Return the largest size that the policy can plan, and its EOR, by plans that split by need.

    bound: what no plan of whole ops can exceed, or of parts where that is known, tried first; within: the
    share of the size to within which it is found; most: no larger one is tried.
    """
    refusals: list[str] = []
    made: dict[int, JobPlan] = {}

    def fits(size: int) -> bool:
        job = job_at(size)
        try:
            # What else could be split for speed takes long to find, and makes nothing fit.
            made[size] = plan_one(job, policy, job.device.memory_nbytes, splits_by_need=True)
        except DoesNotFit:
            return False
        except InvalidRequest as error:
            refusals.append(error.message)
            return False
        return True

    if not fits(1):
        return {"largest": None} | ({"refused": refusals[0]} if refusals else {})
    size = largest(fits, guess=bound, within=within, most=most)
    found = {"largest": size, "eor": round(made[size].prediction.time_ns / job_at(size).eager_ns, 4)}
    return found | {"most": True} if size == most else found


def largest(
    fits: Callable[[int], bool], guess: int | None = None, *, within: float = 0.0, most: int = _MOST
) -> int:
    """Return the largest size from 1 that fits, 0 if none does; what fits, fits smaller too.

    guess: tried first; within: a share of the size, within which one that fits is near enough; most: no
    larger one is tried.
    """
    known: dict[int, bool] = {0: True}

    def ask(size: int) -> bool:
        if size not in known:
            known[size] = size <= most and fits(size)
        return known[size]

    low, high = 0, most + 1
    if guess is not None and 0 < guess <= most:
        if ask(guess):
            low = guess
            if not ask(guess + max(1, int(within * guess))):
                return guess
        else:
            high = guess
    # Doubling first: captures and plans of small sizes are cheap, of vast ones they are not.
    step = max(1, low)
    while low + step < high and ask(low + step):
        low, step = low + step, 2 * step
    if low + step < high:
        high = low + step
    elif high > most:
        if ask(most):
            return most
        high = most
    while high - low > max(1, within * low):
        middle = (low + high) // 2
        if ask(middle):
            low = middle
        else:
            high = middle
    return low
