"""`bench serving`: many models on one device, each asked for a row now and then.

With a training job beside them or not, and in the device's memory or a part of what the models' states take
together, so that they come and go by use.  What a row waits longer than its own forward pass takes, on a
device that it has to itself, is its added latency.

Source: Salus section 5.3 and figure 13: 42 models, three of each of 14 networks, with low request rates; the
average latency overhead is less than 5 ms.  Which 14 of table 3's 15 the paper leaves open; its published
code (SymbioticLab/Salus, `benchmarks/exps/card270.py`) has all but speech, and seq2seq small.
Differs: rows come at random (Poisson), as seldom or as often as the case says; the code waits 10 to 30 s
after each.  A row of seq2seq is a pair of sentences, of vae an image that comes back without noise.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from statistics import fmean
from typing import Any

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.salus import SALUS
from tensile_db.bench.networks.workloads import Workload
from tensile_db.bench.points import subject
from tensile_db.bench.queueing.requests import Asked, Outcome, Served, simulate
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import Made, plan_shared

#: What is served, whatever the batch that it was trained with.
NETWORKS: Mapping[str, Workload] = {
    sized.network: sized.workload
    for name, sized in SALUS.items()
    if sized.network not in ("speech", "seq2seq") or name == "seq2seq_small"
}
COPIES = 3
#: Rows that go forward together.
SIZES = (1, 2, 4, 8)
#: Rows of each model in a second.
RATES = (0.1, 1.0)
#: Of what the models' states take together; None: the device's own memory.
SHARES = (None, 0.5, 0.25)
TRAINING = "resnet50_25"
_SECONDS = 120.0
_SEED = 23
_SECOND = 10**9


def run(
    captures: Captures,
    device: DeviceSpec,
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    copies: int = COPIES,
    rates: Sequence[float] = RATES,
    seconds: float = _SECONDS,
    sharing: str = "auto",
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document; tell: told what is being done."""
    served = []
    for name in networks:
        tell(f"{name}: forward passes")
        sizes = {size: subject(captures.graph(NETWORKS[name], size, None), device) for size in SIZES}
        served += [Served(sizes=sizes)] * copies
    beside_them = SALUS[TRAINING]
    training = subject(captures.graph(beside_them.workload, beside_them.batch, "momentum"), device)
    state_nbytes = sum(model.sizes[1].graph.state_nbytes for model in served)
    plan = partial(_plan, {})
    rows = []
    for rate in rates:
        asked = _asked(len(served), rate, seconds)
        for beside in (None, training):
            for share in SHARES:
                within = device if share is None else replace(device, memory_nbytes=int(share * state_nbytes))
                tell(f"{rate} rows a second, {'training, ' if beside else ''}{within.memory_nbytes:,} bytes")
                case = {"rate": rate, "training": beside is not None, "share": share}
                case["memory_nbytes"] = within.memory_nbytes
                try:
                    outcome = simulate(served, asked, within, sharing, plan, training=beside)
                except DoesNotFit as error:
                    rows.append(case | {"refused": error.message})
                    continue
                rows.append(case | _summary(served, outcome, training.eager_ns))
    return {
        "bench": "serving",
        "device": asdict(device),
        "workload": {
            "networks": list(networks),
            "copies": copies,
            "models": len(served),
            "state_nbytes": state_nbytes,
            "sizes": list(SIZES),
            "training": TRAINING,
            "seconds": seconds,
            "seed": _SEED,
            "sharing": sharing,
        },
        "rows": rows,
    }


def _plan(made: Made, jobs: Sequence[JobRequest], device: DeviceSpec, sharing: str) -> tuple[SharedPlan, ...]:
    return plan_shared(jobs, device, sharing, made)


def _asked(models: int, rate: float, seconds: float) -> list[Asked]:
    rng = random.Random(_SEED)  # a trace, not a secret
    rows = []
    for model in range(models):
        at_s = rng.expovariate(rate)
        while at_s < seconds:
            rows.append(Asked(at_ns=int(at_s * _SECOND), model=model))
            at_s += rng.expovariate(rate)
    return sorted(rows, key=lambda row: (row.at_ns, row.model))


def _summary(served: Sequence[Served], outcome: Outcome, iteration_ns: int) -> dict[str, Any]:
    """Return latencies in ms, shares of turns, and the training's pace over that of one alone."""
    added = sorted(
        (latency_ns - served[model].sizes[1].eager_ns) / 1e6 for model, latency_ns in outcome.latencies_ns
    )
    return {
        "rows": len(added),
        "alone_ms": round(
            fmean(served[model].sizes[1].eager_ns for model, _ in outcome.latencies_ns) / 1e6, 3
        ),
        "added_ms": round(fmean(added), 3),
        "added_95_ms": round(added[-(-95 * len(added) // 100) - 1], 3),
        "rows_a_turn": round(len(added) / outcome.turns, 3),
        "moved": round(outcome.moved / outcome.turns, 4),
        "plannings": outcome.plannings,
        "training_pace": round(outcome.iterations * iteration_ns / outcome.ended_ns, 4),
    }
