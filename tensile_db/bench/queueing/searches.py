"""`bench search`: 300 trials of a search that come at once, all to their end or the losers stopped early.

Source: Salus section 5.2, figure 12.
Differs: Salus trains every trial to its end.  Losers stop here where successive halving by three stops them
in the mean: of nine trials, six at a ninth of their iterations, two at a third, in random order.  A real
search learns only from those before whom to stop, and lets its first trials go on.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.salus import SALUS
from tensile_db.bench.points import Subject, subject
from tensile_db.bench.queueing.simulation import PlanShared, Stay, Submission, simulate, summary
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.shared_plans import Made, plan_shared

#: What Salus searches.
NETWORKS = ("resnet50_50", "superres_128")
TRIALS, ITERATIONS = 300, 100
#: A job of superres is long on the host: for each second on the device, so many between iterations.
SUPERRES_HOST = 1.5
#: So much more or less, from job to job: on no machine do copies of a job go on in step for ever.
HOST_SPREAD = 0.02
#: Parts of their iterations after which nine trials end.
_HALVING = (1 / 9,) * 6 + (1 / 3,) * 2 + (1,)
_SEED = 23
_MAX_JOBS = 16


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str] = NETWORKS,
    trials: int = TRIALS,
    sharing: Sequence[str] = tuple(SHARING_POLICIES),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; networks: of Salus' table 3; tell: told what is being done."""
    made: Made = {}

    def plan(jobs: Sequence[Any], spec: DeviceSpec, policy: str) -> Any:
        return plan_shared(jobs, spec, policy, made)

    rows = []
    for name in networks:
        one = trial(captures, device, name)
        for stops in (False, True):
            for policy in sharing:
                tell(f"{trials} x {name}, {'losers stopped' if stops else 'all to their end'}: {policy}")
                stays = search(one, device, policy, plan, trials=trials, stops=stops)
                rows.append({"network": name, "stops": stops, "sharing": policy} | summary(stays))
    return {
        "bench": "search",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "trials": trials,
            "iterations": ITERATIONS,
            "seed": _SEED,
            "superres_host": SUPERRES_HOST,
            "host_spread": HOST_SPREAD,
            "max_jobs": _MAX_JOBS,
        },
        "rows": rows,
    }


def training(captures: Captures, device: DeviceSpec, name: str) -> Subject:
    """Return a job of Salus' table 3."""
    sized = SALUS[name]
    return subject(captures.graph(sized.workload, sized.batch, "momentum"), device)


def trial(captures: Captures, device: DeviceSpec, name: str) -> Submission:
    """Return one that is trained to its end."""
    job = training(captures, device, name)
    host = SUPERRES_HOST if SALUS[name].network == "superres" else 0.0
    return Submission(
        graph=job.graph,
        latencies_ns=job.latencies_ns,
        at_ns=0,
        iterations=ITERATIONS,
        host_ns=int(host * job.eager_ns),
    )


def search(
    one: Submission,
    device: DeviceSpec,
    sharing: str,
    plan: PlanShared,
    *,
    trials: int = TRIALS,
    stops: bool = False,
) -> list[Stay]:
    """Return what becomes of so many trials; stops: losers end early."""
    drawn = random.Random(_SEED)
    spread = [drawn.uniform(1 - HOST_SPREAD, 1 + HOST_SPREAD) for _ in range(trials)]
    parts = [_HALVING[number % len(_HALVING)] if stops else 1 for number in range(trials)]
    drawn.shuffle(parts)
    jobs = [
        replace(one, host_ns=int(one.host_ns * host), iterations=max(1, round(one.iterations * part)))
        for host, part in zip(spread, parts, strict=True)
    ]
    return simulate(jobs, device, sharing, plan, max_jobs=_MAX_JOBS)
