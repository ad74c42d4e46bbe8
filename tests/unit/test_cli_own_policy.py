"""A policy of one's own: what docs/planner/your_own.md shows works; what is wrong with another is said."""

import json
import re
from pathlib import Path

import pytest

from tensile_db.bench.reports.markdown import table
from tensile_db.commands import bench_options
from tests.cli_runs import refusal, run

ROOT = Path(__file__).parents[2]
PLAN = ("plan", "mlp", "--batch-size", "64", "--device", "sim:a6000", "--json")
#: Of this half suffices.
DEEP = ("plan", "test_resnet", "--batch-size", "16", "--image-size", "32", *PLAN[4:])

_HEAD = """
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import Plan, Wait
"""
_FUNCTION = f"""{_HEAD}
def plan(jobs, device, memory_nbytes):
    order = tuple(range(len(jobs[0].graph.ops)))
"""


def _split(*splits):
    """Return a policy's module that splits ops: axis, parts, ops, each time."""
    made = ", ".join(f"split({split})" for split in splits)
    return (
        f"{_FUNCTION.replace('Plan, Wait', 'Axis, Plan, Split')}"
        "    split = lambda axis, parts, ops: Split(axis=axis, parts=parts, ops=ops)\n"
        f"    return [Plan(policy='mine', order=order, events=(), splits=({made},))]\n"
    )


@pytest.fixture
def policy(own_module):
    """Write a module and return the name of its policy."""
    return lambda text, module="mine": f"{own_module(text, module)}:plan"


@pytest.fixture
def belady(policy):
    """The policy that the documentation shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/planner/your_own.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "def plan" in block)
    return policy(text, "belady")


@pytest.mark.slow
def test_the_one_in_the_documentation_keeps_within_the_budget_and_is_told_by_its_name(belady):
    result = run(*DEEP, "--budget", "50%", "--policy", belady)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["plan"]["policy"] == belady
    assert any(event["kind"] == "swap_out" for event in document["plan"]["events"])
    predicted = document["predicted"]
    assert predicted["guaranteed_peak_nbytes"] <= predicted["vanilla_peak_nbytes"] // 2


@pytest.mark.slow
def test_it_does_with_little_memory_for_its_copies_are_delayed_as_they_will_be(belady):
    # As it lists them some would begin before those that make room for them are awaited.
    network = ("plan", "resnet18", "--batch-size", "16", "--image-size", "64", *PLAN[4:])
    result = run(*network, "--budget", "20%", "--policy", belady)
    assert result.exit_code == 0, result.output
    predicted = json.loads(result.stdout)["predicted"]
    assert max(predicted["guaranteed_peak_nbytes"], predicted["peak_nbytes"]) <= (
        predicted["vanilla_peak_nbytes"] // 5
    )


@pytest.mark.slow
def test_the_bench_compares_it_with_ours(belady, tmp_path):
    result = run(
        *("bench", "single", "--networks", "gcn", "--device", "sim:a6000", "--batch-size", "2"),
        *("--policies", f"vanilla,{belady}", "--budgets", "60", "--no-bound", "--out", str(tmp_path / "out")),
    )
    assert result.exit_code == 0, result.output
    (row,) = json.loads((tmp_path / "out/single_a6000.json").read_text())["networks"]
    assert set(row["policies"]) == {"vanilla", belady}
    assert belady in (tmp_path / "out/single_a6000.md").read_text()


@pytest.mark.slow
def test_its_planning_is_timed_in_a_process_of_its_own(belady, tmp_path):
    result = run(
        *("bench", "plan-time", "--networks", "gcn", "--device", "sim:a6000", "--batch-size", "2"),
        *("--policies", belady, "--curve", "200", "--out", str(tmp_path / "out")),
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out/plan_time_a6000.json").read_text())
    assert {row["policy"] for row in document["rows"]} == {belady}
    assert document["rows"][0]["seconds"] > 0


@pytest.mark.slow
def test_a_name_that_is_an_emojis_between_colons_is_told_as_it_is(policy, tmp_path):
    bench = ("bench", "mixed", "--networks", "gcn", "--device", "sim:a6000", "--batch-size", "2")
    name = policy("from tensile_db.scheduler.policies.vanilla import plan\nzero = plan\n")
    result = run(
        *bench, "--policies", name.replace("plan", "zero"), "--seeds", "1", "--out", str(tmp_path / "out")
    )
    assert "... mine:zero: gcn\n" in result.stderr


@pytest.mark.slow
def test_the_bench_says_why_it_failed_where_results_leave_it_out(policy, tmp_path):
    bench = ("bench", "batch", "--networks", "gcn", "--device", "sim:a6000", "--batch-sizes", "2")
    name = policy(_FUNCTION + "    return 1 / 0\n")
    result = run(*bench, "--within-memory", "--policies", name, "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert '... policy "mine:plan" failed: ZeroDivisionError: division by zero' in result.stderr


def test_why_it_failed_is_one_cell_of_a_table():
    assert table(["why"], [["int | str\nfailed"]]).endswith("| int \\| str failed |")


def test_all_policies_are_all_of_ours(belady):
    assert bench_options.policies(belady) == [belady]
    assert belady not in bench_options.policies("")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:schedule", 'policy "mine:schedule": the module has no function there'),
        ("mine:ANSWER", 'policy "mine:ANSWER": the module has something else than a function there'),
        ("absent:plan", 'policy "absent:plan": there is no module absent'),
        ("mine.deeper:plan", 'policy "mine.deeper:plan": there is no module mine.deeper'),
        (":plan", 'policy ":plan" names no module and function'),
        ("mine:", 'policy "mine:" names no module and function'),
        ("mine", 'policy "mine" names no function of mine.py'),
        ("m" * 4096, 'unknown policy "mmm'),
        ("\x00", 'unknown policy "'),
        ("./mine.py:plan", 'policy "./mine.py:plan" names no module and function'),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_captured(policy, name, said):
    policy("ANSWER = 42\n")
    assert refusal(*PLAN, "--policy", name).startswith(said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import absent_package\n", "failed: ModuleNotFoundError: No module named 'absent_package'"),
        ("1 / 0\n", "failed: ZeroDivisionError: division by zero"),
        ("def plan(jobs:\n", "failed: SyntaxError"),
        ("raise SystemExit\n", "failed: SystemExit"),
        (_FUNCTION + "    raise SystemExit(0)\n", "failed: SystemExit: 0"),
        (_FUNCTION + "    return [jobs.pop()]\n", "failed: AttributeError: 'tuple' object has no"),
        (_FUNCTION + "    return 1 / 0\n", "failed: ZeroDivisionError: division by zero"),
        (
            "def plan():\n    pass\n",
            "failed: TypeError: plan() takes 0 positional arguments but 3 were given",
        ),
        (
            _FUNCTION + "    return None\n",
            "returned something else than a sequence of plans",
        ),
        (_FUNCTION + "    return 7\n", "returned something else than a sequence of plans"),
        (_FUNCTION + "    return []\n", "returned 0 plans for 1 job"),
        (_FUNCTION + "    return ['a plan']\n", "returned something else than a sequence of plans"),
        (
            _FUNCTION + "    return Plan(policy='mine', order=order, events=())\n",
            "returned a plan, not a sequence with one for each job",
        ),
        (
            _FUNCTION + "    return [Plan(policy='mine', order=order[1:], events=())]\n",
            "made an invalid plan: plan.order has",
        ),
        (
            _FUNCTION + "    return [Plan(policy='mine', order=order[::-1], events=())]\n",
            "made an invalid plan: instruction 0",
        ),
        (
            _FUNCTION
            + "    return [Plan(policy='mine', order=order, events=(Wait(tensor=9999, before_op=0),))]\n",
            "made an invalid plan: plan.events[0].tensor",
        ),
        (
            _FUNCTION
            + "    return [Plan(policy='mine', order=order, events=(Wait(tensor=0.5, before_op=0),))]\n",
            "made an invalid plan: plan.events[0].tensor",
        ),
        (
            _FUNCTION + "    return [Plan(policy='mine', order=order, events=('swap',))]\n",
            'made an invalid plan: plan.events[0] is "swap", not an event',
        ),
        (
            _FUNCTION + "    return [Plan(policy='mine', order=order, events=(), packed=(9999,))]\n",
            "made an invalid plan: plan.packed[0] is 9999, not the id of one of the",
        ),
        (
            _FUNCTION + "    return [Plan(policy='mine', order=order, events=(), packed=(0,))]\n",
            "made an invalid plan: plan.packed has tensor 0, of which no code can be kept instead",
        ),
        (_split("Axis.BATCH, 2, (9999,)"), "plan.splits[0].ops[0] is 9999, not the id of one of the 40 ops"),
        (_split("Axis.BATCH, 2, ()"), "plan.splits[0] splits no op"),
        (_split("Axis.BATCH, 0, (1,)"), "plan.splits[0].parts is 0, not a whole number from 1"),
        (
            _split("Axis.CHANNEL, 2, (6,)"),
            "plan.splits[0] splits op 6 (aten._log_softmax.default), which cannot be split along its channel",
        ),
        (
            _split("Axis.CHANNEL, 2, (1, 3)"),
            "plan.splits[0] splits op 1, which has 128 and op 3, which has 64 along its channel",
        ),
        (
            _split("Axis.BATCH, 2, (1, 2)", "Axis.BATCH, 4, (2, 3)"),
            "plan.splits[1] splits op 2, and so does plan.splits[0]",
        ),
        (
            _FUNCTION + "    raise DoesNotFit(needed_nbytes=2**40, budget_nbytes=memory_nbytes)\n",
            "the job needs at least 1.0 TiB of device memory, but the budget is",
        ),
    ],
)
def test_what_is_wrong_with_it_is_said(policy, text, said):
    found = refusal(*PLAN, "--policy", policy(text))
    assert said in found
    assert ("DoesNotFit" in text) or found.startswith('policy "mine:plan" ')
    assert "1 / 0" not in text or f"(mine.py:{text.count(chr(10))})" in found


_RELEASES = f"""{_FUNCTION.replace("Wait", "Release, Wait")}
    last = {{tensor: op.id for op in jobs[0].graph.ops for tensor in (*op.reads, *op.writes)}}
    kept = {{tensor.id for tensor in jobs[0].graph.tensors if tensor.persistent}}
    events = tuple(Release(tensor=tensor, after_op=op) for tensor, op in last.items() if tensor not in kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "events"),
    [
        ("list(order)", "list(events)"),
        ("(op for op in order)", "(event for event in events)"),
        (
            "numpy.arange(len(order))",
            "[Release(tensor=numpy.int64(e.tensor), after_op=numpy.int64(e.after_op)) for e in events]",
        ),
    ],
)
def test_its_plan_may_have_what_counts_and_can_be_gone_through(policy, order, events):
    made = f"    return [Plan(policy='mine', order={order}, events={events})]\n"
    result = run(*PLAN, "--policy", policy(f"import numpy\n{_RELEASES}{made}"))
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert plan["order"] == list(range(len(plan["order"])))
    assert {event["kind"] for event in plan["events"]} == {"release"}


def test_what_it_prints_is_not_among_the_results(policy):
    text = f"{_RELEASES}    print('planning')\n    return [Plan(policy='mine', order=order, events=events)]\n"
    result = run(*PLAN, "--policy", policy(f"print('imported')\n{text}"))
    assert json.loads(result.stdout)["plan"]["policy"] == "mine:plan"
    assert all(said in result.stderr for said in ("imported\n", "planning\n"))


@pytest.mark.slow
def test_more_than_the_memory_is_refused(policy):
    text = _HEAD + (
        "from tensile_db.scheduler.policies import vanilla\n"
        "def plan(jobs, device, memory_nbytes):\n"
        "    return [vanilla.plan_one(job.graph) for job in jobs]\n"
    )
    name = policy(text)
    assert run(*DEEP, "--policy", name).exit_code == 0
    assert 'policy "mine:plan" plans to hold' in refusal(*DEEP, "--policy", name, "--budget", "50%")


def test_ours_are_still_suggested(policy):
    policy("")
    assert 'Did you mean "tensile"?' in refusal(*PLAN, "--policy", "tensil")
