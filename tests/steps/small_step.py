"""A hand-made training step, small enough to write programs for, with one of everything that is hard.

h = mm(x, w1); relu_(h); d, mask = dropout(h); y = mm(d, w2); loss = sum(y)
and backwards, with momentum for w1 and plain SGD with a changing rate for w2.
"""

import torch

from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.step import Scalar, View
from tensile_db.graph import Phase, Role
from tensile_db.scheduler.program import Compute, Free, Program
from tensile_db.scheduler.verify import verify

aten = torch.ops.aten

ROWS, WIDTH, HIDDEN, CLASSES = 4, 8, 16, 3

# Ops, by id.
LOAD, MM1, RELU, DROPOUT, MM2, LOSS, GW2, GD, GH, GRELU, GW1, M1, ADD1, W1, W2, REPORT = range(16)
# Tensors, by id.
X, W1_T, W2_T, M1_T, H, D, MASK, Y, LOSS_T, GW2_T, GD_T, GH_T, GR_T, GW1_T = range(14)


def _dense(builder, shape, role, name, dtype=torch.float32):
    tensor = torch.empty(shape, dtype=dtype)
    made = builder.add_tensor(nbytes=tensor.nbytes, dtype=dtype, shape=shape, role=role, name=name)
    return View(tensor=made, dtype=dtype, size=shape, stride=tensor.stride(), offset=0)


def _transposed(view):
    return View(
        tensor=view.tensor,
        dtype=view.dtype,
        size=view.size[::-1],
        stride=view.stride[::-1],
        offset=view.offset,
    )


def small_step(rows=ROWS):
    """Return the step on batches of so many rows; ids are the constants above."""
    b = StepBuilder()
    x = _dense(b, (rows, WIDTH), Role.INPUT, "x")
    w1 = _dense(b, (WIDTH, HIDDEN), Role.PARAMETER, "parameter/w1")
    w2 = _dense(b, (HIDDEN, CLASSES), Role.PARAMETER, "parameter/w2")
    m1 = _dense(b, (WIDTH, HIDDEN), Role.OPTIMIZER_STATE, "optimizer_state/w1/momentum_buffer")
    h = _dense(b, (rows, HIDDEN), Role.ACTIVATION, "h")
    d = _dense(b, (rows, HIDDEN), Role.ACTIVATION, "d")
    mask = _dense(b, (rows, HIDDEN), Role.ACTIVATION, "mask", torch.bool)
    y = _dense(b, (rows, CLASSES), Role.ACTIVATION, "y")
    loss = _dense(b, (), Role.OUTPUT, "loss")
    gw2 = _dense(b, (HIDDEN, CLASSES), Role.GRADIENT, "gw2")
    gd = _dense(b, (rows, HIDDEN), Role.GRADIENT, "gd")
    gh = _dense(b, (rows, HIDDEN), Role.GRADIENT, "gh")
    gr = _dense(b, (rows, HIDDEN), Role.GRADIENT, "gr")
    gw1 = _dense(b, (WIDTH, HIDDEN), Role.GRADIENT, "gw1")
    for name, view in (
        ("parameter/w1", w1),
        ("parameter/w2", w2),
        ("optimizer_state/w1/momentum_buffer", m1),
    ):
        b.add_state(name, view)
    forward, backward, optimizer = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
    b.load_batch([x])
    b.call(aten.mm.default, (x, w1), phase=forward, outputs=(h,))
    b.call(aten.relu_.default, (h,), phase=forward)
    b.call(aten.native_dropout.default, (h, 0.5, True), phase=forward, outputs=(d, mask))
    b.call(aten.mm.default, (d, w2), phase=forward, outputs=(y,))
    b.call(aten.sum.default, (y,), phase=forward, outputs=(loss,))
    b.call(aten.mm.default, (_transposed(d), y), phase=backward, outputs=(gw2,))
    b.call(aten.mm.default, (y, _transposed(w2)), phase=backward, outputs=(gd,))
    b.call(aten.native_dropout_backward.default, (gd, mask, 2.0), phase=backward, outputs=(gh,))
    b.call(aten.threshold_backward.default, (gh, h, 0), phase=backward, outputs=(gr,))
    b.call(aten.mm.default, (_transposed(x), gr), phase=backward, outputs=(gw1,))
    b.call(aten.mul_.Tensor, (m1, 0.9), phase=optimizer)
    b.call(aten.add_.Tensor, (m1, gw1), phase=optimizer)
    b.call(aten.add_.Tensor, (w1, m1), {"alpha": -0.01}, phase=optimizer)
    # By an operator of which no way is known to take it down with a number that changes.
    b.call(aten.sub_.Tensor, (w2, gw2), {"alpha": Scalar(name="rate")}, phase=optimizer)
    b.report({"loss": loss}, phase=optimizer)
    return b.build(lambda iteration: {"rate": 0.01 / iteration})


def small_forward():
    """Return a forward step over the same parameters: logits = mm(mm(x, w1), w2)."""
    b = StepBuilder()
    w2 = _dense(b, (HIDDEN, CLASSES), Role.PARAMETER, "parameter/w2")
    w1 = _dense(b, (WIDTH, HIDDEN), Role.PARAMETER, "parameter/w1")
    x = _dense(b, (ROWS, WIDTH), Role.INPUT, "x")
    h = _dense(b, (ROWS, HIDDEN), Role.ACTIVATION, "h")
    y = _dense(b, (ROWS, CLASSES), Role.OUTPUT, "logits")
    b.add_state("parameter/w1", w1)
    b.add_state("parameter/w2", w2)
    b.load_batch([x])
    b.call(aten.mm.default, (x, w1), phase=Phase.FORWARD, outputs=(h,))
    b.call(aten.mm.default, (h, w2), phase=Phase.FORWARD, outputs=(y,))
    b.report({"logits": y}, phase=Phase.FORWARD)
    return b.build(lambda _: {})


def small_state():
    """Return first values for both steps."""
    generator = torch.Generator().manual_seed(0)
    return {
        "parameter/w1": torch.randn(WIDTH, HIDDEN, generator=generator),
        "parameter/w2": torch.randn(HIDDEN, CLASSES, generator=generator),
        "optimizer_state/w1/momentum_buffer": torch.zeros(WIDTH, HIDDEN),
    }


def small_batch(number):
    """Return the batch of an iteration."""
    return [torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1000 + number))]


def expected_state(iterations, seed):
    """Return what plain PyTorch makes of small_state: the same arithmetic, without an executor."""
    state = small_state()
    w1, w2, m1 = state["parameter/w1"], state["parameter/w2"], state["optimizer_state/w1/momentum_buffer"]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for iteration in range(1, iterations + 1):
            (x,) = small_batch(iteration)
            h = torch.relu(x @ w1)
            d, mask = torch.native_dropout(h, 0.5, train=True)
            y = d @ w2
            gw2, gd = d.t() @ y, y @ w2.t()
            gr = gd * mask * 2.0 * (h > 0)
            m1.mul_(0.9).add_(x.t() @ gr)
            w1.add_(m1, alpha=-0.01)
            w2.sub_(gw2, alpha=0.01 / iteration)
    return state


def program(step, instructions, start_on_host=()):
    """Return the instructions as a verified program."""
    return Program(
        instructions=tuple(instructions),
        start_on_host=tuple(start_on_host),
        guaranteed_peak_nbytes=verify(step.graph, instructions, start_on_host),
        resident_nbytes=sum(
            t.nbytes for t in step.graph.tensors if t.persistent and t.id not in start_on_host
        ),
    )


def plain_program(step):
    """Return the program that neither swaps nor recomputes: each tensor is freed after its last use."""
    return program(step, plain_instructions(step))


def plain_instructions(step):
    """Return each op, followed by Free for what nobody uses any more."""
    last_use = {tensor: op.id for op in step.graph.ops for tensor in (*op.reads, *op.writes)}
    instructions = []
    for op in step.graph.ops:
        instructions.append(Compute(op=op.id))
        instructions += [
            Free(tensor=tensor)
            for tensor in sorted({*op.reads, *op.writes})
            if last_use[tensor] == op.id and not step.graph.tensors[tensor].persistent
        ]
    return instructions
