"""Fake results have the layouts that the CPU's kernels give, down to dimensions of size 1."""

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tensile_db.capture.fakes.cpu_layouts import CpuFakeMode
from tensile_db.capture.fakes.tensor_iterator import result_stride
from tensile_db.capture.networks.architectures import build, default_image_size
from tensile_db.capture.state import model_state
from tensile_db.capture.substitute import substituted
from tests.examples import examples

aten = torch.ops.aten


class Layouts(TorchDispatchMode):
    """Notes every operator that runs, with the layouts of its arguments and results."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # Fake tensors are asked for their device, and detached more often.
        if not str(func).startswith(("prim.", "aten.detach", "aten.alias")):
            self.seen.append((str(func), tree_map(layout, args), tree_map(layout, result)))
        return result


def layout(value):
    return (tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else value


def layouts_of_a_step(model, features):
    parameters = list(model.parameters())
    with Layouts() as layouts, torch.autograd.set_multithreading_enabled(False):
        torch.autograd.grad(model(features).sum(), parameters, allow_unused=True)
    return layouts.seen


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "test_convnext",
        pytest.param("test_maxvit", marks=pytest.mark.thorough),
        pytest.param("levit_128s", marks=pytest.mark.slow),
        "test_efficientnet",
        "test_vit",
        pytest.param("edgenext_xx_small", marks=pytest.mark.thorough),
    ],
)
def test_every_op_of_a_step_has_eagers_layouts(name):
    size = default_image_size(name, (32, 32))
    model = build(name, num_outputs=3, input_shape=(3, *size), seed=0).train()
    mode = CpuFakeMode(allow_non_fake_inputs=True)
    with mode:
        fakes = {
            key.split("/", 1)[1]: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
            for key, value in model_state(model).items()
        }
        for key, _ in model.named_parameters():
            fakes[key].requires_grad_()
        with substituted(model, fakes):
            faked = layouts_of_a_step(model, torch.empty(2, 3, *size))
    real = layouts_of_a_step(model, torch.zeros(2, 3, *size))
    assert len(real) > 100
    assert [pair for pair in zip(real, faked, strict=True) if pair[0] != pair[1]] == []


@st.composite
def strided(draw, shape):
    """A tensor of this shape, its dimensions in any order in memory, with or without gaps."""
    order = draw(st.permutations(range(len(shape))))
    stride, running = [0] * len(shape), draw(st.sampled_from([1, 1, 2]))
    for dim in order:
        any_will_do = shape[dim] == 1 and draw(st.booleans())
        stride[dim] = draw(st.sampled_from([1, 7, 64])) if any_will_do else running
        running = running * shape[dim] + draw(st.sampled_from([0, 0, 0, 1]))
    return torch.ones(4096).as_strided(shape, stride)


SHAPES = st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4)

UNARY = [
    (aten.gelu.default, ()),
    (aten.silu.default, ()),
    (aten.hardswish.default, ()),
    (aten.pow.Tensor_Scalar, (2.0,)),
    (aten.clamp_min.default, (0.0,)),
    (aten.mul.Tensor, (2.0,)),
    (aten.add.Tensor, (2.0,)),
    (aten.div.Scalar, (2.0,)),
    (aten.gt.Scalar, (0.0,)),
]


@given(shape=SHAPES, call=st.sampled_from(UNARY), data=st.data())
@examples(300)
def test_an_elementwise_op_on_one_tensor_has_its_kernels_strides(shape, call, data):
    function, numbers = call
    args = (data.draw(strided(shape)), *numbers)
    result = function(*args)
    assert result_stride(function, args, result) == result.stride()


BINARY = [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.le.Tensor]
SAME_SHAPED = [
    (aten.gelu_backward.default, ()),
    (aten.hardswish_backward.default, ()),
    (aten.sigmoid_backward.default, ()),
    (aten.threshold_backward.default, (0.0,)),
    (aten.hardtanh_backward.default, (-1.0, 1.0)),
    (aten.lerp.Scalar, (0.5,)),
]


@given(shape=SHAPES, function=st.sampled_from(BINARY), data=st.data())
@examples(300)
def test_an_elementwise_op_that_broadcasts_has_its_kernels_strides(shape, function, data):
    narrowed = [data.draw(st.sampled_from([1, size])) for size in shape]
    start = data.draw(st.integers(0, len(shape) - 1))
    args = (data.draw(strided(shape)), data.draw(strided(narrowed[start:])))
    result = function(*args)
    assert result_stride(function, args, result) == result.stride()


@given(shape=SHAPES, call=st.sampled_from(SAME_SHAPED), data=st.data())
@examples(300)
def test_an_elementwise_op_on_two_of_a_shape_has_its_kernels_strides(shape, call, data):
    function, numbers = call
    args = (data.draw(strided(shape)), data.draw(strided(shape)), *numbers)
    result = function(*args)
    assert result_stride(function, args, result) == result.stride()


def convolution(features, weight, groups):
    """Return a convolution's result and gradients; kernels may be as large as what they convolve."""
    shape = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], groups)
    result = aten.convolution.default(features, weight, *shape)
    gradient = torch.empty_like(result)
    made = aten.convolution_backward.default(gradient, features, weight, *shape, [True, True, False])
    return result, made[0], made[1]


@given(
    rows=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    channels=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 3])),
    size=st.integers(1, 3),
    kernel=st.integers(1, 3),
    dtype=st.sampled_from([torch.float16, torch.float64]),
    formats=st.tuples(*[st.sampled_from([torch.contiguous_format, torch.channels_last])] * 2),
)
@examples(200)
def test_a_convolution_without_onednn_has_its_kernels_strides(
    rows, groups, channels, size, kernel, dtype, formats
):
    shapes = (
        (rows, groups * channels[0], size + kernel - 1, size + kernel - 1),
        (groups * channels[1], channels[0], kernel, kernel),
    )
    strides = []
    for mode in (nullcontext(), CpuFakeMode()):
        with mode:
            given = (torch.zeros(shape, dtype=dtype) for shape in shapes)
            laid_out = (
                tensor.to(memory_format=memory_format)
                for tensor, memory_format in zip(given, formats, strict=True)
            )
            strides.append([tensor.stride() for tensor in convolution(*laid_out, groups)])
    assert strides[0] == strides[1]


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: torch.nn.functional.mse_loss(x, torch.zeros_like(x)), (6,)),
        (
            lambda x: torch.nn.functional.fold(x, output_size=4, kernel_size=3, padding=1, stride=2),
            (2, 18, 4),
        ),
    ],
)
def test_results_keep_the_larger_storage_that_their_kernel_made(function, shape):
    real = function(torch.ones(shape))
    with CpuFakeMode():
        fake = function(torch.ones(shape))
    assert fake.untyped_storage().nbytes() == real.untyped_storage().nbytes() > real.nbytes


IMAGES, PER_CHANNEL, PER_GROUP = (4, 6, 5, 5), (6,), (4, 2)


@pytest.mark.parametrize(
    ("function", "shapes", "rest"),
    [
        (aten.native_batch_norm_backward.default, (IMAGES, IMAGES, *(PER_CHANNEL,) * 5), (True, 1e-5)),
        (
            aten.native_group_norm_backward.default,
            (IMAGES, IMAGES, PER_GROUP, PER_GROUP, PER_CHANNEL),
            (4, 6, 25, 2),
        ),
        (
            aten.convolution_backward.default,
            ((4, 6, 3, 3), IMAGES, (6, 6, 3, 3)),
            ([6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
        (aten.grid_sampler_2d_backward.default, (IMAGES, IMAGES, (4, 5, 5, 2)), (0, 0, False)),
    ],
)
def test_no_gradient_is_expected_that_the_kernel_does_not_make(function, shapes, rest):
    for wanted in product([True, False], repeat=len(function._schema.returns)):
        made = []
        for mode in (nullcontext(), CpuFakeMode()):
            with mode:
                results = function(*(torch.ones(shape) for shape in shapes), *rest, list(wanted))
            made.append({place for place, result in enumerate(results) if result is not None})
        real, fake = made
        assert {place for place, is_wanted in enumerate(wanted) if is_wanted} <= fake <= real
