"""One section in a process of its own: python -m bench.gpu.section NAME --device D --out FILE < GO.

GO is a line that comes when it is the section's turn: how many seconds it has, and since when.
"""

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

# Read when cuBLAS is first used; see tensile_db/worker/devices/cuda/opening.py.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TORCH_CUBLAS_WORKSPACE_CACHE", "1")

from bench.gpu import (  # after the lines above
    section_capacity,
    section_capturing,
    section_compiled,
    section_correctness,
    section_device,
    section_formats,
    section_jobs,
    section_product,
    section_replay,
    section_single,
)
from bench.gpu.machine import Machine  # the same
from bench.gpu.results import Results  # the same

Run = Callable[..., None]

SECTIONS: Mapping[str, Run] = {
    "device": section_device.run,
    "correctness": section_correctness.run,
    "capturing": section_capturing.run,
    "replay": section_replay.run,
    "product": section_product.run,
    "single": section_single.run,
    "jobs": section_jobs.run,
    "formats": section_formats.run,
    "capacity": section_capacity.run,
    "compiling": section_compiled.run_ahead,
    "compiled": section_compiled.run,
}


def main() -> None:
    """Run the section and write its results as they come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(SECTIONS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--captures", type=Path, help="the folder of captured steps")
    parser.add_argument("--ready", type=int, help="a descriptor to close when all is imported")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    # A kernel without a deterministic form says so once for each call.
    warnings.filterwarnings("once", category=UserWarning)
    sys.setswitchinterval(0.0005)
    machine = Machine(options.device, options.captures)
    _import_networks()
    machine.keep_imports()
    if options.ready is not None:
        os.close(options.ready)
    if not (go := sys.stdin.readline().split()):
        # Whoever started this has ended.
        return
    limit_s, began_s = (float(number) for number in go)
    results = Results(
        options.out,
        section=options.name,
        limit_s=limit_s,
        facts=machine.facts() | {"quick": options.quick},
        # By time.monotonic(), the machine's.
        began_s=began_s,
    )
    with results.until_end():
        SECTIONS[options.name](machine, results, quick=options.quick)


def _import_networks() -> None:
    """Import what it takes to build and train a network: seconds, without the device."""
    import timm  # noqa: F401
    import torch._dynamo  # noqa: F401  # by optimizers


if __name__ == "__main__":
    main()
