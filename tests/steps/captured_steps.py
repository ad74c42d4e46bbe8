"""Training steps on square images of ten classes: of timm's networks, and of a small one."""

from torch import nn

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step

#: Convolutions, batch norms, poolings and sums, few of each: planned in a fraction of the time.
SMALL = "convolutions"


def captured_step(architecture, *, batch, side, optimizer="adam"):
    """Return the graph of a step over so many images of so many pixels a side."""
    if architecture == SMALL:
        model = _convolutions()
    else:
        model = build(architecture, num_outputs=10, input_shape=(3, side, side), seed=1, options={})
    shape = (batch, 3, side, side)
    step = capture_train_step(model, batch_shape=shape, target="classes", optimizer=configure(optimizer))
    return step.graph


def _convolutions():
    return nn.Sequential(
        *_convolution(3, 16),
        nn.MaxPool2d(2),
        _Residual(16),
        *_convolution(16, 32),
        nn.MaxPool2d(2),
        _Residual(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _convolution(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


class _Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(*_convolution(channels, channels))

    def forward(self, images):
        return images + self.body(images)
