"""Training steps of timm's networks, on square images of ten classes."""

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step


def captured_step(architecture, *, batch, side, optimizer="adam"):
    """Return the graph of a step over so many images of so many pixels a side."""
    model = build(architecture, num_outputs=10, input_shape=(3, side, side), seed=1, options={})
    shape = (batch, 3, side, side)
    step = capture_train_step(model, batch_shape=shape, target="classes", optimizer=configure(optimizer))
    return step.graph
