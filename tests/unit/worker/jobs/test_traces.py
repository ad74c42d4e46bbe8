"""Equal networks are traced once, and what is captured is as if each had been."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.freezing import freeze_backbone
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.step_digest import step_digest
from tensile_db.capture.train_step import capture_train_step, lower_train_step, trace_train_step
from tensile_db.errors import InvalidRequest
from tensile_db.worker.jobs import capturing
from tensile_db.worker.jobs.traces import Traces

CPU = torch.device("cpu")
SGD, ADAM = configure("sgd"), configure("adam", learning_rate=0.5)

WHAT = {"name": "mlp", "num_outputs": 3, "input_shape": (5,), "options": {"hidden_units": [7]}}
STEP = {"batch_shape": (4, 5), "task": "classification", "optimizer": SGD, "device": CPU, "num_outputs": 3}
FORWARD = {
    "batch_shape": (4, 5),
    "device": CPU,
    "precision": Precision.FLOAT32,
    "num_outputs": 3,
    "architecture": "mlp",
}

IMAGES = (4, 3, 32, 32)
RESNET = {"name": "test_resnet", "num_outputs": 3, "input_shape": IMAGES[1:], "options": {}}


@pytest.fixture(autouse=True)
def traces(monkeypatch):
    """None yet."""
    kept = Traces()
    monkeypatch.setattr(capturing, "_TRACES", kept)
    return kept


@pytest.fixture
def traced(monkeypatch):
    """The batch shapes of the training steps that were traced."""
    shapes = []

    def trace(*args, **kwargs):
        shapes.append(kwargs["batch_shape"])
        return trace_train_step(*args, **kwargs)

    monkeypatch.setattr(capturing, "trace_train_step", trace)
    return shapes


def build(*, seed=1, **others):
    return capturing.build(**{"seed": seed} | WHAT | others)


def digest_of(traced):
    return step_digest(lower_train_step(traced))


def captured_alone(network, **others):
    step = {**STEP, **others}
    step["target"] = "classes" if step.pop("task") == "classification" else "values"
    return step_digest(capture_train_step(network, **step))


def test_a_second_network_that_is_equal_but_for_its_weights_is_not_traced(traced):
    first, second = build(seed=1), build(seed=2)
    for network, optimizer in ((first, SGD), (second, ADAM)):
        found = capturing.traced_training(network, **{**STEP, "optimizer": optimizer})
        assert found.optimizer == optimizer
        assert digest_of(found) == captured_alone(network, optimizer=optimizer)
    assert traced == [(4, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "step"),
    [
        ({"num_outputs": 4}, {"num_outputs": 4}),
        ({"input_shape": (6,)}, {"batch_shape": (4, 6)}),
        ({"options": {"hidden_units": [8]}}, {}),
        ({"options": {"hidden_units": [7], "dropout": 0.5}}, {}),
        ({}, {"batch_shape": (3, 5)}),
        ({}, {"precision": Precision.BFLOAT16}),
        ({}, {"precision": Precision.FLOAT16}),
        ({}, {"num_class_weights": 3}),
    ],
    ids=str,
)
def test_one_that_is_not_is_traced_as_if_it_were_alone(network, step, traced):
    capturing.traced_training(build(), **STEP)
    other = build(**network)
    assert digest_of(capturing.traced_training(other, **{**STEP, **step})) == captured_alone(other, **step)
    assert len(traced) == 2


def test_numbers_are_another_task_than_classes(traced):
    one = {"num_outputs": 1}
    for task in ("classification", "regression"):
        found = capturing.traced_training(build(**one), **{**STEP, **one, "task": task})
        assert digest_of(found) == captured_alone(build(**one), **one, task=task)
    assert len(traced) == 2


@pytest.mark.slow
def test_a_frozen_backbone_is_traced_by_itself_forward_too(traced):
    forward = []
    for is_frozen in (False, True):
        network = build(**RESNET)
        if is_frozen:
            wider = capturing.weight_shapes(**{**RESNET, "num_outputs": 4})
            freeze_backbone(network, wider, architecture="test_resnet")
        found = capturing.traced_training(network, **{**STEP, "batch_shape": IMAGES}, is_frozen=is_frozen)
        assert digest_of(found) == captured_alone(network, batch_shape=IMAGES, is_frozen=is_frozen)
        forward.append(capturing.traced_forward(network, **{**FORWARD, "batch_shape": IMAGES}))
    assert len(traced) == 2
    every, of_outputs = (each.trained for each in forward)
    assert of_outputs < every


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"byte_channels": 3}, {"options": {"memory_format": "channels_last"}}])
def test_images_in_another_form_are_another_step(traced, other):
    step = {name: value for name, value in other.items() if name != "options"}
    for network_of, of_step in ((RESNET, {}), (RESNET | {"options": other.get("options", {})}, step)):
        network = build(**network_of)
        found = capturing.traced_training(network, **{**STEP, "batch_shape": IMAGES}, **of_step)
        assert digest_of(found) == captured_alone(network, batch_shape=IMAGES, **of_step)
    assert len(traced) == 2


def test_going_forward_is_another_step(traced):
    network = build()
    steps = [capturing.traced_forward(build(seed=seed), **FORWARD) for seed in (1, 2)]
    assert steps[0] is steps[1]
    assert traced == []
    training = capturing.traced_training(network, **STEP)
    assert digest_of(training) == captured_alone(network)
    assert traced == [(4, 5)]
    assert not steps[0].trace.gradients


def test_on_another_number_of_threads_it_is_traced_again(traced):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            capturing.traced_training(build(), **STEP)
    finally:
        torch.set_num_threads(before)
    assert len(traced) == 2


def test_from_a_packages_network_on_all_are_traced_each_time(traced, monkeypatch):
    class Point:
        value = "offering:build"

        def load(self):
            return lambda num_outputs, in_channels, image_size: nn.Linear(in_channels, num_outputs)

    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": Point()})
    capturing.traced_training(build(), **STEP)
    for _ in range(2):
        capturing.traced_training(build(name="theirs", options={}), **STEP)
    # Its code may have changed what others' does.
    for _ in range(2):
        capturing.traced_training(build(), **STEP)
    assert len(traced) == 5


def test_from_one_on_that_fails_as_well(traced, monkeypatch):
    class Point:
        name, value = "theirs", "offering:build"

        def load(self):
            raise SystemExit

    capturing.traced_training(build(), **STEP)
    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": Point()})
    with pytest.raises(InvalidRequest):
        build(name="theirs", options={})
    capturing.traced_training(build(), **STEP)
    assert len(traced) == 2


class WithValues(nn.Module):
    """Has a tensor that is neither parameter nor buffer."""

    def __init__(self, value):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.value = torch.full((3,), value)

    def forward(self, features):
        return self.layer(features) + self.value


def test_a_trace_that_holds_values_is_not_kept(traces):
    for value in (1.0, 2.0):
        network = WithValues(value)
        traces.note_built(network, "the same")
        found = traces.of(
            network,
            "training",
            lambda network=network: trace_train_step(
                network, batch_shape=(4, 5), target="classes", optimizer=SGD
            ),
        )
        (held,) = (tensor for tensor in found.trace.module.buffers())
        assert held.tolist() == [value] * 3


@pytest.mark.slow
def test_those_that_were_asked_for_last_are_kept(traced, monkeypatch):
    network = build()
    num_nodes = len(capturing.traced_training(network, **STEP).trace.module.graph.nodes)
    monkeypatch.setattr(capturing, "_TRACES", Traces(2 * num_nodes))
    traced.clear()
    for rows in (1, 2, 1, 3, 1, 2):
        capturing.traced_training(build(), **{**STEP, "batch_shape": (rows, 5)})
    assert [shape[0] for shape in traced] == [1, 2, 3, 2]


@pytest.mark.slow
def test_one_that_is_too_large_is_not_kept_and_leaves_the_others(traced, monkeypatch):
    num_nodes = len(capturing.traced_training(build(), **STEP).trace.module.graph.nodes)
    monkeypatch.setattr(capturing, "_TRACES", Traces(num_nodes))
    traced.clear()
    for _ in range(2):
        capturing.traced_training(build(), **STEP)
        larger = build(options={"hidden_units": [7, 7]})
        assert digest_of(capturing.traced_training(larger, **STEP)) == captured_alone(larger)
    assert len(traced) == 3


def test_one_that_fails_leaves_nothing_behind(monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("as some do")

    with monkeypatch.context() as patched:
        patched.setattr(capturing, "trace_train_step", fail)
        with pytest.raises(RuntimeError):
            capturing.traced_training(build(), **STEP)
    assert digest_of(capturing.traced_training(build(), **STEP)) == captured_alone(build())


@pytest.mark.slow
def test_threads_lower_one_trace_at_the_same_time():
    found = capturing.traced_training(build(**RESNET), **{**STEP, "batch_shape": IMAGES})

    def lower(optimizer):
        return digest_of(replace(found, optimizer=optimizer))

    alone = {optimizer: lower(optimizer) for optimizer in (SGD, ADAM)}
    assert alone[SGD] != alone[ADAM]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lower, [SGD, ADAM] * 4)) == [alone[SGD], alone[ADAM]] * 4
