"""Where ATen's convolutions have their arguments.

Source: `convolution` and `convolution_backward` in ATen's native_functions.yaml.
"""

from enum import IntEnum


class Forward(IntEnum):
    """Of `convolution`."""

    TRANSPOSED = 6
    GROUPS = 8


class Backward(IntEnum):
    """Of `convolution_backward`, which makes the gradients of its input, its weight and its bias."""

    GRADIENT = 0
    INPUT = 1
    WEIGHT = 2
    BIAS_SIZES = 3
    TRANSPOSED = 7
    GROUPS = 9
    #: Which of the three it makes.
    MASK = 10
