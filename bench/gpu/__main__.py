"""Checks and measures the GPU device on a bare machine in under nine minutes.

    python -m bench.gpu [--device cuda:0] [--minutes 8.8] [--out FOLDER] [--only SECTION ...]
    python -m bench.gpu --device cpu --quick        a dry run of every line, anywhere

Needs PyTorch and timm; only the section `product` needs PostgreSQL and more packages, which can be brought
along (bench/gpu/pack.py).  Each section runs in a process of its own within its own time; what it has found
when it ends, or is ended, is in FOLDER/SECTION.json.  summary.json tells how each came out, report.md sets
goals beside what was measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench.gpu.held import finish, go, held, start
from bench.results import RESULTS
from tensile_db.worker.openmp import wait_briefly

#: (sections that run beside each other, share of the time), in order: what the others rest on comes first.
#: Where something is timed, nothing else runs.
GROUPS = (
    (("device",), 0.05),
    (("tests", "correctness", "compiling", "capturing"), 0.17),
    (("replay",), 0.07),
    (("product",), 0.22),
    (("single",), 0.20),
    (("jobs",), 0.11),
    (("formats",), 0.05),
    (("capacity",), 0.08),
    (("compiled",), 0.05),
)
SECTIONS = tuple(name for names, _ in GROUPS for name in names)
#: How long after its time a section is told to end that does not look at its clock.
_GRACE_S = 4.0
_MOST_TESTERS = 8
#: Below the results' folder while sections run: steps that one has captured for others.
_CAPTURES = "captured"


def main() -> None:
    """Run the sections, group after group, and report; exit with 1 where one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=8.8)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu")
    parser.add_argument("--only", nargs="+", choices=SECTIONS)
    parser.add_argument(
        "--captures", type=Path, help="a folder for captured steps, which other runs of this code find there"
    )
    parser.add_argument("--quick", action="store_true", help="toy networks, to try the bench itself")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wait_briefly()
    wanted = SECTIONS if options.only is None else options.only
    groups = [(tuple(name for name in names if name in wanted), share) for names, share in GROUPS]
    chosen = [(names, share) for names, share in groups if names]
    until_s = time.monotonic() + 60 * options.minutes
    known = options.out / "summary.json"
    # Sections that ran before, and do not now, are still there.
    summary: dict[str, Any] = json.loads(known.read_text()) if options.only and known.exists() else {}
    captures = options.captures or options.out / _CAPTURES
    if options.captures is None:
        rmtree(captures, ignore_errors=True)
    settings = ["--device", options.device, "--captures", str(captures), *["--quick"] * options.quick]
    waiting = (name for names, _ in chosen for name in names if name != "tests")
    with held(waiting, settings, options.out) as processes:
        for place, (names, share) in enumerate(chosen):
            # Time that earlier sections left over goes to the later ones.
            rest = sum(later for _, later in chosen[place:])
            limit_s = (until_s - time.monotonic()) * share / rest - _GRACE_S
            print(f"== {', '.join(names)}, at most {limit_s:.0f} s", flush=True)
            run = partial(_run, processes=processes, limit_s=limit_s, folder=options.out)
            with ThreadPoolExecutor(max_workers=len(names)) as pool:
                summary |= zip(names, pool.map(run, names), strict=True)
            known.write_text(json.dumps(summary, indent=1) + "\n")
    if options.captures is None:
        rmtree(captures, ignore_errors=True)
    _report(options.out)
    for name, found in summary.items():
        print(f"{name:12} {json.dumps(found)}")
    if any(found["status"] != 0 for found in summary.values()):
        sys.exit(1)


def _report(folder: Path) -> None:
    # In a process of its own: whatever is amiss with it, the results are there.
    command = [sys.executable, "-m", "bench.gpu.report", str(folder)]
    print(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout, flush=True)


def _run(
    name: str, processes: Mapping[str, subprocess.Popen[bytes]], limit_s: float, folder: Path
) -> dict[str, Any]:
    begin_s = time.monotonic()
    log, document = folder / f"{name}.log", folder / f"{name}.json"
    if name == "tests":
        process = start(name, _tests_command(), log)
    else:
        document.unlink(missing_ok=True)
        process = processes[name]
        go(process, limit_s)
    status = finish(process, limit_s + _GRACE_S)
    found: dict[str, Any] = {"status": status, "took_s": round(time.monotonic() - begin_s, 1)}
    if status != 0:
        found["said"] = log.read_text(errors="replace")[-800:]
    if name != "tests" and document.exists():
        written = json.loads(document.read_text())
        found |= {key: written[key] for key in ("ended", "failures", "not_reached")}
        found["failures"] = [each["name"] for each in found["failures"]]
        found["entries"] = len(written["entries"])
        found |= {key: written[key] for key in ("not_run",) if key in written}
    return found


def _tests_command() -> list[str]:
    # Their conftest.py alone: that of the other tiers wants PostgreSQL.
    command = [sys.executable, "-m", "pytest", "--confcutdir=tests/gpu", "tests/gpu"]
    return [*command, "-q", "-ra", "--tb=short", "-p", "no:cacheprovider", *_side_by_side_options()]


def _side_by_side_options() -> tuple[str, ...]:
    """Return pytest's options for as many tests at a time as there are cores for, where it can do so."""
    workers = min(_MOST_TESTERS, (os.cpu_count() or 1) // 2)
    if workers < 2 or find_spec("xdist") is None:
        return ()
    # pytest-benchmark, where it is installed, warns that it measures nothing then, and warnings are errors.
    return ("-n", str(workers), "-p", "no:benchmark")


if __name__ == "__main__":
    main()
