"""A captured step, walked op by op, against the training that eager PyTorch makes of the same network."""

import torch
from torch.nn import functional

from tensile_db.capture.loss_scale import GROWTH_TRACKER, SCALE
from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tests.steps.bitwise_runs import CASTS, skips_in
from tests.unit.capture.interpreter import Interpreter, same_bits

SEED = 5


CLASSES = 5


EAGER = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=1e-4),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


CAPTURED = {
    "sgd": {"learning_rate": 0.01},
    "momentum": {"learning_rate": 0.01, "weight_decay": 1e-4},
    "adam": {"learning_rate": 0.01, "weight_decay": 1e-4},
    "adamw": {"learning_rate": 0.01},
}


def batches(shape, target, count):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        features = torch.randn(shape, generator=generator)
        if target == "classes":
            yield features, torch.randint(0, CLASSES, shape[:1], generator=generator)
        else:
            yield features, torch.randn(shape[:1], generator=generator)


def loss_of(output, labels):
    if labels.dtype == torch.int64:
        return functional.cross_entropy(output, labels)
    return functional.mse_loss(output.squeeze(1), labels)


def eager_losses(model, optimizer, data, precision=Precision.FLOAT32, scaler=None):
    model.train()
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.set_state(torch.Generator().manual_seed(SEED).get_state())
        for features, labels in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=CASTS.get(precision), enabled=precision in CASTS):
                loss = loss_of(model(features), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss.detach()


def eager_state(model, optimizer):
    state = {f"parameter/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    state |= {f"buffer/{name}": buffer for name, buffer in model.named_buffers()}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state[parameter].items():
            if slot != "step" and value is not None:
                state[f"optimizer_state/{name}/{slot}"] = value
    return state


def assert_bitwise(name, shape, optimizer, *, target="classes", options=None, **more):
    outputs = CLASSES if target == "classes" else 1
    model = build(name, num_outputs=outputs, input_shape=shape[1:], seed=7, options=options)
    return assert_model_bitwise(model, shape, optimizer, target=target, **more)


def assert_model_bitwise(
    model,
    shape,
    optimizer,
    *,
    target="classes",
    iterations=3,
    strict=False,
    precision=Precision.FLOAT32,
    scale=None,
    eager=None,
):
    """Train both ways, compare all bits, and return the walk.

    scale: the loss scale and for how long it was that; eager: another model to be trained eagerly.
    """
    config = configure(optimizer, **CAPTURED[optimizer])
    step = capture_train_step(model, batch_shape=shape, target=target, optimizer=config, precision=precision)
    walk = Interpreter(step, torch.Generator().manual_seed(SEED), strict=strict)
    state = initial_state(model, config, scales_loss=precision.scales_loss)
    scaler = torch.amp.GradScaler("cpu", enabled=precision.scales_loss)
    if scale is not None:
        state[SCALE], state[GROWTH_TRACKER] = (
            torch.tensor(scale[0]),
            torch.tensor(scale[1], dtype=torch.int32),
        )
        scaler.load_state_dict(scaler.state_dict() | {"scale": scale[0], "_growth_tracker": scale[1]})
    walk.load_state(state)
    data = list(batches(shape, target, iterations))
    captured = []
    for batch in data:
        captured.append(walk.run(len(captured) + 1 - skips_in(captured), batch))
    model = eager or model
    eager_optimizer = EAGER[optimizer](model.parameters())
    losses = list(eager_losses(model, eager_optimizer, data, precision, scaler))
    assert all(same_bits(one["loss"], other) for one, other in zip(captured, losses, strict=True))
    expected = eager_state(model, eager_optimizer)
    if precision.scales_loss:
        expected |= {SCALE: scaler._scale, GROWTH_TRACKER: scaler._growth_tracker}
        walk.skipped = skips_in(captured)
    state = walk.state()
    assert state.keys() == expected.keys()
    assert [name for name in state if not same_bits(state[name], expected[name])] == []
    return walk
