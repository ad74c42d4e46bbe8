"""A frozen backbone's part of a step, done once for each row, and the rest: together eager PyTorch's bits."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensile_db.capture.forward_step import trace_forward_step
from tensile_db.capture.frozen_steps import frozen_steps, head_forward_step
from tensile_db.capture.networks.architectures import build, weight_shapes
from tensile_db.capture.networks.freezing import freeze_backbone, frozen_modules
from tensile_db.capture.precision import Precision
from tensile_db.capture.step_digest import step_digest
from tensile_db.capture.train_step import trace_train_step
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.vanilla import plan_one
from tests.steps.bitwise_runs import (
    CLASSES,
    Training,
    bits_of,
    differing,
    first_state,
    train_eagerly,
    train_here,
)

pytestmark = pytest.mark.slow

ROWS = 4


def frozen(name, side, **options):
    """Return a network, of which only the layer of the outputs is trained, and a batch's shape."""
    shape = (3, side, side)

    def make():
        network = build(name, num_outputs=CLASSES, input_shape=shape, seed=3, options=options)
        wider = weight_shapes(name, num_outputs=CLASSES + 1, input_shape=shape, options=options)
        freeze_backbone(network, wider, architecture=name)
        for module in frozen_modules(network.train()):
            module.eval()
        return network

    return make, (ROWS, *shape)


def steps_of(training):
    network = training.build()
    traced = trace_train_step(
        network,
        batch_shape=training.shape,
        target="classes",
        optimizer=training.optimizer_config,
        precision=training.precision,
        byte_channels=training.byte_channels,
        is_frozen=True,
    )
    forward = trace_forward_step(
        network, training.shape, precision=training.precision, byte_channels=training.byte_channels
    )
    return frozen_steps(traced, forward), forward


def run(device, step, state, batches):
    """Run a step by eager PyTorch's plan; return its state's bits and what each iteration came to."""
    program = lower(step.graph, plan_one(step.graph))
    own = {name: value for name, value in state.items() if name in step.state}
    return train_here(device, step, own, program, batches)


def features_by_row(device, step, state, images, normalisation, order):
    """Return what a backbone makes of images, in batches of this order, by the images' places."""
    made = {}
    for first in range(0, len(order), ROWS):
        places = order[first : first + ROWS]
        _, (result,) = run(device, step, state, [(images[places], *normalisation)])
        for row, place in enumerate(places):
            made[place] = [output[row] for output in result.outputs.values()]
    return made


@pytest.mark.parametrize(
    ("name", "side", "optimizer", "changes"),
    [
        ("test_resnet", 32, "momentum", {}),
        ("test_resnet", 32, "adam", {"byte_channels": 3}),
        ("test_resnet", 32, "adam", {"precision": Precision.FLOAT16}),
        ("test_vit", 160, "adamw", {"precision": Precision.BFLOAT16}),
        # Its head takes two tokens of one tensor.
        pytest.param("deit_tiny_distilled_patch16_224", 224, "sgd", {}, marks=pytest.mark.thorough),
        # Dropout before the layer of the outputs.
        ("test_resnet", 32, "momentum", {"dropout": 0.5}),
    ],
)
def test_what_is_made_once_and_the_rest_are_eager_pytorchs_bits(
    cpu_device, one_thread, name, side, optimizer, changes
):
    options = {"dropout": changes.pop("dropout")} if "dropout" in changes else {}
    make, shape = frozen(name, side, **options)
    training = Training(build=make, shape=shape, optimizer=optimizer, is_frozen=True, **changes)
    steps, _ = steps_of(training)
    batches = training.batches()
    state = first_state(training)
    normalisation = batches[0][2:]
    images = torch.cat([features for features, *_ in batches])
    # Beside other rows than those that they are trained beside.
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(4)).tolist()
    made = features_by_row(cpu_device, steps.backbone, state, images, normalisation, order)
    loaded = [
        (
            *(
                torch.stack([made[number * ROWS + row][place] for row in range(ROWS)])
                for place in range(len(steps.features))
            ),
            target,
        )
        for number, (_, target, *_) in enumerate(batches)
    ]
    got, _ = run(cpu_device, steps.head, state, loaded)
    want, _ = train_eagerly(training)
    assert not differing(got, {name: want[name] for name in got})
    before = bits_of(state)
    changed = {name for name in want if want[name] != before[name]}
    assert changed
    assert changed <= set(got)


class Odd(nn.Module):
    """Of two layers the second is trained, and what lies between them is a test's own."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Linear(6, CLASSES).requires_grad_(False)
        self.fc = nn.Linear(CLASSES, CLASSES)
        self._between = between

    def forward(self, rows):
        return self._between(self, rows)


def overwritten(own, rows):
    made = torch.zeros(len(rows), CLASSES)
    outputs = own.fc.bias + made
    made.add_(own.body(rows))
    return own.fc(made) + outputs


def written_behind(network, rows):
    made = network.body(rows)
    outputs = made + network.fc.bias
    return network.fc(made.mul_(2)) + outputs


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda own, rows: own.fc(own.body(functional.dropout(rows, 0.5))), id="random"),
        pytest.param(lambda own, rows: own.fc(own.body(rows).t().contiguous().t()), id="rows last"),
        pytest.param(lambda own, rows: own.fc(own.body(rows).sum().expand(ROWS, CLASSES)), id="of all rows"),
        pytest.param(lambda own, rows: own.fc(own.body(rows * (2 if own.training else 1))), id="in training"),
        pytest.param(written_behind, id="written behind the head's back"),
        pytest.param(overwritten, id="a constant that is overwritten"),
        pytest.param(lambda own, rows: own.fc(rows[:, :CLASSES]), id="no backbone"),
    ],
)
def test_where_rows_have_no_features_of_their_own_nothing_is_done_once(between):
    training = Training(build=lambda: Odd(between), shape=(ROWS, 6), optimizer="sgd")
    assert steps_of(training)[0] is None


def filled(own, rows):
    made = rows.new_zeros(len(rows), CLASSES)
    made.copy_(own.body(rows))
    return own.fc(made)


def added_to(own, rows):
    made = torch.zeros(len(rows), CLASSES)
    made += own.body(rows)
    return own.fc(made)


def written_in_part(own, rows):
    made = own.body(rows)
    made[:, :2].add_(own.fc.bias[:2])
    return own.fc(made)


def needed_by_both(own, rows):
    constant = own.body.weight.sum()
    return own.fc(own.body(rows) * constant) * constant


@pytest.mark.parametrize(
    "between",
    [
        needed_by_both,
        filled,
        added_to,
        written_in_part,
        pytest.param(
            lambda own, rows: own.fc(own.body(rows * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))),
            id="a constant tensor",
        ),
        pytest.param(
            lambda own, rows: own.fc(own.body(rows)[:, torch.tensor([1, 0, 2, 3, 4])]), id="indices"
        ),
    ],
)
def test_odd_networks_are_eager_pytorchs_bits_too(cpu_device, one_thread, between):
    training = Training(build=lambda: Odd(between), shape=(ROWS, 6), optimizer="momentum")
    steps, _ = steps_of(training)
    batches, state = training.batches(), first_state(training)
    made = [run(cpu_device, steps.backbone, state, [(features,)])[1][0] for features, _ in batches]
    loaded = [(*each.outputs.values(), target) for each, (_, target) in zip(made, batches, strict=True)]
    got, _ = run(cpu_device, steps.head, state, loaded)
    want, _ = train_eagerly(training)
    assert not differing(got, {name: want[name] for name in got})


def test_a_constant_that_both_need_is_made_by_both():
    steps, _ = steps_of(Training(build=lambda: Odd(needed_by_both), shape=(ROWS, 6), optimizer="sgd"))
    for step in (steps.backbone, steps.head):
        assert sum(op.target == "aten.sum.default" for op in step.graph.ops) == 1


def test_other_constants_have_another_digest():
    def digest(*numbers, precision=Precision.FLOAT32):
        constant = torch.arange(2000.0).index_fill_(0, torch.tensor(numbers), 0.5)[1000:1006]
        network = Odd(lambda own, rows: own.fc(own.body(rows * constant)))
        training = Training(build=lambda: network, shape=(ROWS, 6), optimizer="sgd", precision=precision)
        return step_digest(steps_of(training)[0].backbone)

    assert digest(1001) == digest(1001)
    assert len({digest(1001), digest(1002), digest(1002, precision=Precision.TF32)}) == 3


def test_the_head_goes_forward_over_what_was_made_once(cpu_device, one_thread):
    make, shape = frozen("test_vit", 160)
    training = Training(build=make, shape=shape, optimizer="sgd", is_frozen=True, iterations=1)
    steps, forward = steps_of(training)
    ((features, *_),) = training.batches()
    state = first_state(training)
    _, (made,) = run(cpu_device, steps.backbone, state, [(features,)])
    _, (result,) = run(
        cpu_device, head_forward_step(forward, steps.features), state, [tuple(made.outputs.values())]
    )
    with torch.no_grad():
        assert torch.equal(result.outputs["logits"], make().eval()(features))


@pytest.mark.parametrize("rows", [1, 3, 2 * ROWS])
def test_the_head_goes_forward_over_other_batches(cpu_device, one_thread, rows):
    make, shape = frozen("test_resnet", 32)
    training = Training(build=make, shape=shape, optimizer="sgd", is_frozen=True)
    steps, _ = steps_of(training)
    forward = trace_forward_step(training.build(), (rows, *shape[1:]))
    generator = torch.Generator().manual_seed(6)
    (kind,) = steps.features
    features = torch.randn((rows, *kind.shape), generator=generator)
    step = head_forward_step(forward, steps.features)
    _, (result,) = run(cpu_device, step, first_state(training), [(features,)])
    with torch.no_grad():
        assert torch.equal(result.outputs["logits"], make().fc(features))
    assert head_forward_step(forward, ()) is None


def test_features_are_those_that_eager_pytorch_makes_of_the_same_batches(cpu_device, one_thread):
    # Of this network they are not quite the same elsewhere in a batch.
    make, shape = frozen("test_efficientnet_gn", 64)
    training = Training(build=make, shape=shape, optimizer="sgd", is_frozen=True, iterations=8)
    steps, _ = steps_of(training)
    batches = [(features,) for features, _ in training.batches()]
    _, results = run(cpu_device, steps.backbone, first_state(training), batches)
    network = make().eval()
    for result, (images,) in zip(results, batches, strict=True):
        (made,) = result.outputs.values()
        with torch.no_grad():
            want = network.forward_head(network.forward_features(images), pre_logits=True)
        assert torch.equal(made, want)
