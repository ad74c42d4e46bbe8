"""Workspaces of a GPU's kernels: measured apart they are what a training holds, and no more is held."""

import pytest
import torch

from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.latencies.hardware import hardware_name
from tensile_db.worker.workspaces.charging import with_workspaces
from tests.gpu.conftest import GIB
from tests.gpu.measured_workspaces import measured_apart
from tests.steps.bitwise_runs import capture, tight_plan, train_here
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.filterwarnings("default")


def test_measured_apart_an_op_needs_what_it_needs_in_a_training(gpu, open_gpu):
    device, training = open_gpu(), training_of("resnet", "momentum", 32)
    step, state = capture(training, gpu)
    apart = measured_apart(step, device)
    assert None not in apart
    assert any(apart), "convolutions have workspaces"
    plan = tight_plan(step, device, 1.0)
    with JobMemory(device, job=1, budget_nbytes=GIB, state=state, seed=1) as memory:
        executor = Executor(step, memory, replay=False)
        executor.adopt(plan.program)
        first, second, *_ = training.batches()
        executor.run_iteration(first, 1)
        within = executor.run_iteration(second, 2, measure_workspaces=True).workspaces_nbytes
        executor.close()
    assert list(within) == apart


def test_what_the_allocator_is_asked_for_stays_within_the_account(gpu, open_gpu):
    device, training = open_gpu(), training_of("resnet", "adam", 32)
    step, state = capture(training, gpu)
    step = with_workspaces(step, measured_apart(step, device))
    plan = tight_plan(step, device, 0.7)
    torch.cuda.synchronize()
    device.watch_memory()
    _, results = train_here(device, step, state, plan.program, training.batches())
    # cuBLAS keeps a workspace of up to 32 MiB for each thread.
    assert device.watched_nbytes() <= results[-1].peak_nbytes + 40 * 2**20


def test_the_hardwares_name_has_all_versions_that_choose_kernels(gpu):
    name = hardware_name(torch.device(gpu), threads=1)
    for part in (torch.__version__, f"CUDA {torch.version.cuda}", f"cuDNN {torch.backends.cudnn.version()}"):
        assert part in name
