"""How many calls a replayed iteration is, with updates of small tensors handed over as one.

Of an iteration's ops, recomputations included, for how many PyTorch is called: each by itself, and as a
recording takes them down (scheduler/sharing/gathered_updates.py, execution/joined_calls.py).  For plans
within a share of what eager PyTorch holds, on a simulated H200, graphs as captured for the processor; if the
device's kernels of many tensors give the bits of those of one.

    python -m bench.joined_updates [--captures FOLDER]
"""

import argparse
from pathlib import Path
from typing import Any

from bench.recorded_cases import planned
from bench.results import provenance, table, write
from tensile_db.bench.networks.captures import Captures
from tensile_db.graph import Phase
from tensile_db.scheduler.program import Compute
from tensile_db.scheduler.sharing.gathered_updates import gathered
from tensile_db.worker.execution.joined_calls import JOINED_CALLS
from tensile_db.worker.execution.joined_held_calls import JOINED_HELD_CALLS

#: (network, batch, optimizer)
CASES = (
    *(("resnet50", 16, optimizer) for optimizer in ("momentum", "adam")),
    *((name, 16, "momentum") for name in ("vgg16", "inception_v3", "densenet121", "vit")),
    *(("gpt", 8, optimizer) for optimizer in ("momentum", "adam")),
)
SHARES = (1.0, 0.5)
#: Calls of an op by itself, where they are not one: on GPUs, of the sum that takes a changing number.
_APART = {"aten.addcdiv_.default": 2}
_TOGETHER = {**JOINED_CALLS, **JOINED_HELD_CALLS}


def main() -> None:
    """Plan every case, count, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description="How many calls a replayed iteration is.")
    parser.add_argument("--captures", type=Path, help="where captured steps are kept")
    captures = Captures(folder=parser.parse_args().captures)
    rows = [row for case in CASES for share in SHARES if (row := _row(captures, *case, share))]
    path = write("joined_updates", provenance("bench.joined_updates") | {"rows": rows})
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(f"written to {path}")


def _row(captures: Captures, name: str, batch: int, optimizer: str, share: float) -> dict[str, Any] | None:
    found = planned(captures, name, batch, optimizer, share)
    if found is None:
        return None
    graph, program = found
    made = gathered(graph, program)
    ops = [graph.ops[each.op] for each in program.instructions if isinstance(each, Compute)]
    called = [op.target for op in ops if op.target not in ("tensile.load_batch", "tensile.report")]
    calls = sum(_APART.get(target, 1) for target in called)
    for begin, end in made.rows:
        first = made.program.instructions[begin]
        assert isinstance(first, Compute), "rows are of ops"
        target = graph.ops[first.op].target
        apart = (end - begin) * _APART.get(target, 1)
        # An optimizer's numbers are the same for all parameters.
        calls -= max(0, apart - _TOGETHER.get(target, apart))
    return {
        "network": name,
        "batch": batch,
        "optimizer": optimizer,
        "share": share,
        "ops": len(called),
        "of the optimizer": sum(op.phase is Phase.OPTIMIZER and bool(op.writes) for op in ops),
        "calls": calls,
    }


if __name__ == "__main__":
    main()
