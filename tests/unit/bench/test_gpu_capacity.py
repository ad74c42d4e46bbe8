"""The search for the largest batch on a GPU: what ends it, what it lets go of, what plans are made with."""

import json
import weakref
from functools import partial

import pytest
import torch

from bench.gpu import section_capacity
from bench.gpu.networks import capacity_cases
from bench.gpu.report import _capacity
from bench.gpu.results import Results
from bench.gpu.subjects import Subject
from bench.gpu.too_large import is_out_of_memory
from bench.gpu.workspaces import Workspaces
from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.policies.in_parts import find_splits
from tensile_db.worker.workspaces import charging
from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tests.late.runs import GIB, open_late
from tests.late.step import late_step
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

MIB = 2**20
NO_ENGINE = "GET was unable to find an engine to execute this computation"


def accelerator_error(code):
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code
    return error


#: What makes the errors: one that is kept keeps the frames that it was raised in.
TOO_LARGE = [
    partial(torch.OutOfMemoryError, "CUDA out of memory"),
    partial(RuntimeError, NO_ENGINE),
    partial(RuntimeError, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    partial(RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    partial(accelerator_error, 2),
]
BROKEN = [
    partial(RuntimeError, "mat1 and mat2 shapes cannot be multiplied"),
    partial(accelerator_error, 700),
    partial(ValueError, NO_ENGINE),
]


class Activations:
    """What an iteration holds."""


class Machine:
    """A GPU that counts what it is asked."""

    is_gpu = True

    def __init__(self):
        self.did = []

    def __getattr__(self, name):
        return lambda *args, **options: self.did.append(name)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "capacity.json", section="capacity", limit_s=1000, facts={})


@pytest.fixture
def train(monkeypatch):
    """Have eager trainings of more than 50 rows fail; what they hold must be gone before the next one."""

    def use(fail):
        held = []

        class Eager:
            def __init__(self, subject, machine):
                assert [each() for each in held] == [None] * len(held)
                held.append(weakref.ref(self))
                self.size, self.machine = subject.size, machine

            def iterate(self):
                self.machine.did.append("trained")
                activations = Activations()
                held.append(weakref.ref(activations))
                if self.size > 50:
                    raise fail()

        monkeypatch.setattr(section_capacity, "Eager", Eager)
        return held

    return use


@pytest.mark.parametrize("fail", TOO_LARGE)
def test_whatever_says_that_memory_is_short_ends_the_search_there(results, train, fail):
    held = train(fail)
    (toy,) = capacity_cases(quick=True)
    found = section_capacity._largest_eager(toy, Machine(), 1, results, quick=False)
    # Within a sixteenth.
    assert found.size == 50
    assert type(fail()).__name__ in found.refusal
    assert len(held) > 8


@pytest.mark.parametrize("fail", BROKEN)
def test_another_failure_is_none_of_memory(results, train, fail):
    assert not is_out_of_memory(fail())
    train(fail)
    (toy,) = capacity_cases(quick=True)
    with pytest.raises(type(fail())):
        section_capacity._largest_eager(toy, Machine(), 1, results, quick=False)


def test_eager_has_the_allocator_of_an_open_device_from_its_first_run(results, train, monkeypatch):
    monkeypatch.setattr(section_capacity, "_add_planned", lambda *of: None)
    train(torch.OutOfMemoryError)
    machine = Machine()
    section_capacity.run(machine, results, quick=True)
    assert machine.did.index("let_segments_grow") < machine.did.index("trained")


def test_where_nothing_fits_it_is_told_why(results, train, monkeypatch):
    class Eager:
        def __init__(self, subject, machine):
            raise RuntimeError(NO_ENGINE)

    monkeypatch.setattr(section_capacity, "Eager", Eager)
    section_capacity.run(Machine(), results, quick=True)
    entries = results._document["entries"]
    assert {entry["eager_batch"] for entry in entries} == {0}
    assert NO_ENGINE in entries[0]["eager_refusal"]


def test_eagers_batch_and_each_plan_stay_whatever_ends_the_section(results, train, monkeypatch):
    train(torch.OutOfMemoryError)

    def attempted(workload, machine, cap_nbytes, size, results):
        if size > 100:
            raise KeyboardInterrupt
        return {"batch": size, "trained": {}}

    monkeypatch.setattr(section_capacity, "_try", attempted)
    with pytest.raises(KeyboardInterrupt):
        section_capacity.run(Machine(), results, quick=True)
    eager, planned = json.loads(results.path.read_text())["entries"]
    assert (eager["eager_batch"], planned["times"], planned["batch"]) == (50, 2, 100)
    (said,) = _capacity(results.path.parent)
    assert said.splitlines()[-1] == f"| {eager['network']} | 11 | 50 | 2 |"


def of_products(call, results_nbytes):
    return 4 * results_nbytes if "mm" in str(call.function) else 0


class Measured:
    """A step on a device whose kernels take so much beyond their results."""

    def __init__(self, step=None, *, room_nbytes=MIB, has_time=lambda: True, workspace=of_products):
        runtime, self.device = open_late("kernels first", workspace=workspace)
        self.step = step or s.small_step()

        def open_meter(step, device, *, room_nbytes):
            return WorkspaceMeter(late_step(step, runtime), device, room_nbytes=room_nbytes)

        self.workspaces = Workspaces(
            self.device, room_nbytes=room_nbytes, has_time=has_time, open_meter=open_meter
        )


def test_plans_are_made_with_what_was_measured():
    measured = Measured()
    charged = measured.workspaces.charge(measured.step)
    products = [op for op in charged.graph.ops if "mm" in op.target]
    assert products
    for op in charged.graph.ops:
        results_nbytes = sum(charged.graph.tensors[tensor].nbytes for tensor in op.writes)
        assert op.workspace_nbytes == (4 * results_nbytes if op in products else 0)
    facts = measured.workspaces.facts()
    assert (facts["guessed"], facts["measured"] > 0) == (0, True)
    assert facts["largest_nbytes"] == max(op.workspace_nbytes for op in products)
    # What is known is measured once.
    assert measured.workspaces.charge(charged) is charged
    assert measured.workspaces.facts()["measured"] == facts["measured"]
    subject = Subject(
        name="small", size=1, build=None, batch=(), step=measured.step, state={}, capturing_s=0.0
    )
    plan = section_capacity._plan(subject, measured.device, MIB, measured.workspaces)
    assert subject.step.graph == charged.graph
    with pytest.raises(DoesNotFit):
        section_capacity._plan(subject, measured.device, products[0].workspace_nbytes, measured.workspaces)
    assert plan.budget_nbytes > products[0].workspace_nbytes
    measured.device.close()


def test_what_there_is_no_time_for_is_guessed_as_a_worker_guesses():
    measured = Measured(has_time=lambda: False)
    charged = measured.workspaces.charge(measured.step)
    guessed = [charging.guess_nbytes(measured.step, op.id, MIB) for op in measured.step.graph.ops]
    runs = [call.function is not None for call in measured.step.calls]
    assert [op.workspace_nbytes for op in charged.graph.ops] == [
        nbytes if is_run else 0 for nbytes, is_run in zip(guessed, runs, strict=True)
    ]
    assert measured.workspaces.facts()["measured"] == 0
    measured.device.close()


# Charged as a worker charges it, of which the same is tested.
@pytest.mark.thorough
@pytest.mark.slow
def test_parts_that_need_more_than_their_op_make_it_need_as_much():
    step, _ = capture_once(training_of("resnet", "momentum", 32))
    rewriting = find_splits(step.graph, int(0.7 * lower_bound_peak_nbytes(step.graph))).rewriting
    of_whole_ops = {
        sum(step.graph.tensors[view.tensor].nbytes for view in call.outputs if view is not None)
        for call in step.calls
    }
    # Kernels for smaller results that want more.
    measured = Measured(
        step, room_nbytes=GIB, workspace=lambda call, nbytes: 10 if nbytes in of_whole_ops else 7777
    )
    before = measured.workspaces.charge(step)
    after = measured.workspaces.charge_parts(before, rewriting)
    assert 7777 in {op.workspace_nbytes for op in after.graph.ops}
    assert measured.workspaces.charge_parts(after, rewriting) is after
    assert measured.workspaces.charge_parts(after, Rewriting()) is after
    measured.device.close()
