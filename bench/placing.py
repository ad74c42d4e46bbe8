"""How much memory recordings would take, were each tensor's place chosen ahead.

What is taken down as a CUDA graph has its tensors where PyTorch's allocator puts them: in the smallest hole
there is when it is asked (scheduler/sharing/growing_range.py).  All lifetimes are known before, so places
could be chosen: at will, by greedy orders of offline dynamic storage allocation, and as near to that as the
allocator can be made to give them (scheduler/sharing/addresses.py).  For plans within a share of what eager
PyTorch holds, on a simulated H200.

    python -m bench.placing [--share 0.5] [--captures FOLDER]
"""

import argparse
import time
from pathlib import Path
from typing import Any

from bench.recorded_cases import planned
from bench.results import provenance, table, write
from tensile_db.bench.networks.captures import Captures
from tensile_db.scheduler.sharing.addresses import (
    POWERS,
    best_addresses,
    end_of,
    lifetimes,
    placed,
)
from tensile_db.scheduler.sharing.growing_range import (
    alive_nbytes,
    asked_by_instructions,
    asked_for,
    in_pages,
    ranges_nbytes,
)

#: (network, batch) of some that `make bench-gpu` measures within half of the memory.
CASES = (("resnet50", 16), ("vit", 16), ("vit", 64), ("vgg16", 16), ("vgg16", 64), ("gpt", 8))


def main() -> None:
    """Plan every case, place its tensors each way, write the results, and print them as a table."""
    parser = argparse.ArgumentParser(description="What places chosen ahead would save.")
    parser.add_argument("--share", type=float, default=0.5, help="of eager's peak, what plans may hold")
    parser.add_argument("--captures", type=Path, help="where captured steps are kept")
    options = parser.parse_args()
    captures = Captures(folder=options.captures)
    rows = [row for name, batch in CASES if (row := _row(captures, name, batch, options.share))]
    path = write("placing", provenance("bench.placing") | {"share": options.share, "rows": rows})
    print(table(list(rows[0]), [list(row.values()) for row in rows]))
    print(f"written to {path}")


def _row(captures: Captures, name: str, batch: int, share: float) -> dict[str, Any] | None:
    found = planned(captures, name, batch, "momentum", share)
    if found is None:
        return None
    made, program = found
    alive = alive_nbytes(made, program)
    small, large = ranges_nbytes(asked_for(made, program))
    # Small tensors have a range of their own, in which nothing is chosen.
    times = lifetimes(asked_by_instructions(made, program))
    at_will = [end_of(times, placed(times, power)) for power in POWERS]
    begin_s = time.perf_counter()
    addresses = best_addresses(times)
    search_s = time.perf_counter() - begin_s
    assert addresses is not None, "there are so many tensors that none is looked for"
    ways = {
        "as the allocator": small + large,
        "steered": small + in_pages(end_of(times, addresses)),
        "at will": small + in_pages(min(at_will)),
    }
    return {
        "network": name,
        "batch": batch,
        "alive_nbytes": alive,
        **{way: round(nbytes / alive, 3) for way, nbytes in ways.items()},
        "search_s": round(search_s, 3),
    }


if __name__ == "__main__":
    main()
