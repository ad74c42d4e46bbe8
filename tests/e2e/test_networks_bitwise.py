"""The papers' networks, a transformer and an MLP, under tight budgets, equal plain eager PyTorch bit for bit.

Width and depth are the networks' own; images are as small as each takes.
"""

from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import pytest

from tensile_db.capture.networks.architectures import build
from tensile_db.scheduler.lowering import lower
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.checkpoints import Checkpoint, Progress
from tensile_db.worker.jobs.records import Records
from tests.at_once import at_once
from tests.examples import one_in
from tests.steps.bitwise_runs import (
    CLASSES,
    Training,
    capture,
    differing,
    first_state,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
    vanilla_peak_nbytes,
    with_recomputation,
)

#: One process, for tests share what takes long: captured networks, and those that were trained eagerly.
pytestmark = pytest.mark.xdist_group("networks_bitwise")

#: Shape of a batch, iterations, and options.
NETWORKS = {
    # Half a gigabyte of parameters: every iteration more takes seconds.
    "vgg16": ((2, 3, 32, 32), 2, {"dropout": 0.5}),
    "resnet50": ((2, 3, 32, 32), 3, {}),
    "inception_v3": ((2, 3, 75, 75), 3, {}),
    "densenet121": ((2, 3, 32, 32), 3, {}),
    "vit_tiny_patch16_224": ((4, 3, 32, 32), 3, {}),
    "mlp": ((4, 3, 32, 32), 3, {"hidden_units": [512, 256], "dropout": 0.3}),
}

#: Of vanilla's peak, what the program may hold; and how many activations are recomputed that the planner does
#: not recompute by itself, because images so small leave the peak where no activation is held.
CASES = [
    ("vgg16", "sgd", 0.9, 4),
    # What adamw does otherwise than adam is in the five others.
    ("vgg16", "adam", 0.5, 4),
    ("resnet50", "sgd", 0.3, 0),
    ("resnet50", "adam", 0.3, 0),
    ("resnet50", "adamw", 0.3, 0),
    ("inception_v3", "sgd", 0.3, 4),
    ("inception_v3", "adamw", 0.3, 0),
    ("inception_v3", "adam", 0.3, 0),
    ("densenet121", "adam", 0.2, 0),
    ("densenet121", "adamw", 0.2, 0),
    ("densenet121", "sgd", 0.2, 4),
    ("vit_tiny_patch16_224", "sgd", 0.3, 4),
    ("vit_tiny_patch16_224", "adam", 0.3, 4),
    ("vit_tiny_patch16_224", "adamw", 0.3, 4),
    ("mlp", "sgd", 0.95, 2),
    ("mlp", "adamw", 0.5, 2),
    ("mlp", "adam", 0.5, 2),
]

TIGHT = {(network, optimizer): (share, recomputed) for network, optimizer, share, recomputed in CASES}

#: Always tried.  By some policy ResNet-50 and the ViT always are in test_networks_policies.py, too.
ALWAYS = (("resnet50", "sgd"), ("vit_tiny_patch16_224", "adam"), ("mlp", "adamw"))
TRIED = [pytest.param(*names, marks=[] if names in ALWAYS else [pytest.mark.thorough]) for names in TIGHT]


@cache
def original(network):
    """Return the network as it is before training, to be copied: to draw its weights takes seconds."""
    shape, _, options = NETWORKS[network]
    return build(network, num_outputs=CLASSES, input_shape=shape[1:], seed=7, options=options)


def training_of(network, optimizer):
    shape, iterations, _ = NETWORKS[network]
    return Training(
        build=lambda: deepcopy(original(network)), shape=shape, optimizer=optimizer, iterations=iterations
    )


@cache
def eager(network, optimizer):
    """Return the bits that eager PyTorch trains the network to, and its losses."""
    return train_eagerly(training_of(network, optimizer))


@cache
def captured(network, optimizer):
    """Return the captured step, for tests that need none of their own."""
    step, _ = capture(training_of(network, optimizer))
    return step


def tight_program(step, device, network, optimizer):
    """Return a program that swaps and recomputes within the share of vanilla's peak."""
    share, recomputed = TIGHT[network, optimizer]
    plan = with_recomputation(step.graph, tight_plan(step, device, share).plan, tensors=recomputed)
    program = lower(step.graph, plan)
    # The little over is what the recomputed activations read, which may not be away.
    assert program.guaranteed_peak_nbytes <= (share + 0.06) * vanilla_peak_nbytes(step.graph)
    return program


def assert_swapped_and_recomputed_within(results, program):
    assert all(result.swapped_in_nbytes > 0 for result in results)
    assert all(result.recomputed_ops > 0 for result in results)
    assert all(result.peak_nbytes <= program.guaranteed_peak_nbytes for result in results)


@pytest.mark.parametrize(("network", "optimizer"), TRIED)
def test_a_network_trained_under_a_tight_budget_equals_eager_pytorch(cpu_device, network, optimizer):
    training = training_of(network, optimizer)
    step = captured(network, optimizer)
    program = tight_program(step, cpu_device, network, optimizer)
    got, results = train_here(cpu_device, step, first_state(training), program, training.batches())
    assert_swapped_and_recomputed_within(results, program)
    want, losses = eager(network, optimizer)
    assert losses_of(results) == losses
    assert differing(got, want) == []


def test_four_trainings_at_once_on_a_device_that_just_holds_them_equal_eager_pytorch(make_device):
    chosen = [*ALWAYS, ("vit_tiny_patch16_224", "sgd")]
    steps = [captured(*names) for names in chosen]
    device = make_device(1 << 34)
    programs = [tight_program(step, device, *names) for step, names in zip(steps, chosen, strict=True)]
    device.memory.capacity_nbytes = sum(program.guaranteed_peak_nbytes for program in programs)
    trainings = [training_of(*names) for names in chosen]
    states = [first_state(training) for training in trainings]
    got, results = {}, {}

    def run(job):
        got[job], results[job] = train_here(
            device, steps[job], states[job], programs[job], trainings[job].batches(), job=job
        )

    at_once(run, range(4))
    assert device.memory.peak_nbytes <= device.memory.capacity_nbytes
    for job, names in enumerate(chosen):
        assert_swapped_and_recomputed_within(results[job], programs[job])
        want, _ = eager(*names)
        assert differing(got[job], want) == []


#: Network -> optimizer, of the cases above; the first is always tried, and captured and trained already.
BUILT_ANEW = {
    "vit_tiny_patch16_224": "adam",
    "resnet50": "sgd",
    "inception_v3": "sgd",
    "densenet121": "adamw",
    "mlp": "adam",
    "vgg16": "sgd",
}


@pytest.mark.parametrize("network", one_in(len(BUILT_ANEW), BUILT_ANEW))
def test_a_network_built_anew_goes_on_from_the_catalog_bit_for_bit(make_device, engine, fence, network):
    optimizer = BUILT_ANEW[network]
    training = training_of(network, optimizer)
    job = SimpleNamespace(records=Records(engine, fence, give_up=lambda: True), must_break_off=lambda: False)

    def save(memory):
        checkpoint = Checkpoint(
            progress=Progress(iteration=1), state=memory.state(), random_state=memory.random_state()
        )
        checkpoints.save(job, checkpoint)

    device = make_device(1 << 34)
    step = captured(network, optimizer)
    program = tight_program(step, device, network, optimizer)
    train_here(device, step, first_state(training), program, training.batches()[:1], after=save)

    # From here on there is nothing but what the catalog has.
    with engine.begin() as conn:
        found = checkpoints.load(conn, fence.job)
    device = make_device(1 << 34)
    step, _ = capture(training)
    program = tight_program(step, device, network, optimizer)
    got, results = train_here(
        device,
        step,
        found.state,
        program,
        training.batches()[1:],
        first=found.progress.iteration + 1,
        random_state=found.random_state,
    )
    assert_swapped_and_recomputed_within(results, program)
    want, losses = eager(network, optimizer)
    assert losses_of(results) == losses[1:]
    assert differing(got, want) == []
