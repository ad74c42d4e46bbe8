"""A dry run of the GPU bench on the processor: every section, at toy size."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SECTIONS = (
    *("device", "tests", "correctness", "compiling", "capturing", "replay", "product"),
    *("single", "jobs", "formats", "capacity", "compiled"),
)


def run(tmp_path, *options):
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    finished = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    return finished, json.loads((tmp_path / "summary.json").read_text())


@pytest.mark.timeout(3600)
@pytest.mark.thorough
def test_every_section_runs_to_its_end_and_leaves_its_results(tmp_path):
    finished, summary = run(tmp_path, "--minutes", "50")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert tuple(summary) == SECTIONS
    for name in SECTIONS:
        if name != "tests":
            assert_ended(tmp_path, summary, name)
    assert_compared(tmp_path)
    report = (tmp_path / "report.md").read_text()
    headings = [
        *("Bits equal to eager's", "Replayed iterations", "One job", "From SQL", "Jobs at once", "Capacity"),
        "Precisions and memory formats: toy_cnn, batch 4",
    ]
    assert all(f"## {heading}" in report for heading in headings)
    tried = json.loads((tmp_path / "formats.json").read_text())["entries"]
    assert [(entry["precision"], entry["way"]) for entry in tried].count(("float16", "auto")) == 2
    assert all(math.isfinite(entry["loss"]) for entry in tried)
    assert_trained_from_sql(json.loads((tmp_path / "product.json").read_text()))


def test_sections_may_be_run_alone(tmp_path):
    finished, summary = run(tmp_path, "--only", "device", "correctness", "--minutes", "20")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert tuple(summary) == ("device", "correctness")
    for name in summary:
        assert_ended(tmp_path, summary, name)
    assert_compared(tmp_path)
    assert "## Bits equal to eager's" in (tmp_path / "report.md").read_text()


def assert_ended(folder, summary, name):
    assert summary[name]["ended"], name
    assert (summary[name]["failures"], summary[name]["not_reached"]) == ([], []), name
    document = json.loads((folder / f"{name}.json").read_text())
    assert {"command", "machine", "versions", "device", "quick"} <= set(document)
    assert document["entries"]


def assert_compared(folder):
    compared = json.loads((folder / "correctness.json").read_text())["entries"]
    assert all(entry["equal"] for entry in compared)
    assert {entry["policy"] for entry in compared} == {"vanilla", "tensile", "auto"}
    assert all(entry["swap_ins"] for entry in compared if entry["policy"] != "vanilla")


def assert_trained_from_sql(product):
    trained = [entry for entry in product["entries"] if "attempt" in entry]
    assert [(entry["way"], entry["attempt"]) for entry in trained] == [
        ("alone", 1),
        ("killed", 2),
        ("two at once", 1),
        ("two at once", 1),
        ("alone", 1),
    ]
    assert all(entry["equal"] and entry["within"] for entry in trained)
    # Room for one as eager PyTorch holds it, and not for two.
    first, second = product["eager_peaks_nbytes"].values()
    assert max(first, second) < product["worker_memory_nbytes"] < first + second
    alone, (killed,) = trained[0], [entry for entry in trained if entry["way"] == "killed"]
    assert alone["peak_nbytes"] <= alone["memory_limit_nbytes"] < 0.51 * first
    assert "taken_over" in {kind for kind, _ in killed["events"]}
    assert "resume" in {plan["reason"] for plan in killed["plans"]}
    predicted = [entry for entry in product["entries"] if "as_eager" in entry]
    assert [(entry["rows"], entry["as_eager"]) for entry in predicted] == [(64, 64), (8, 8)]


def test_a_section_that_outstays_its_time_is_ended_and_what_it_found_stays(tmp_path):
    finished, summary = run(tmp_path, "--only", "single", "--minutes", "0.2")
    assert finished.returncode == 1 or summary["single"]["not_reached"]
    document = json.loads((tmp_path / "single.json").read_text())
    assert document["section"] == "single"


def test_the_bench_wants_nothing_that_a_bare_machine_lacks():
    code = (
        "import sys; sys.modules |= dict.fromkeys(('sqlalchemy', 'psycopg', 'alembic', 'optuna'));"
        "import bench.gpu.section, bench.gpu.process_job;"
        "import tests.steps.bitwise_runs, tests.steps.small_networks"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
