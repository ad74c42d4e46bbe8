"""Codes on a GPU: the bits of PyTorch's own operators there, and of eager PyTorch's training."""

import pytest
import torch

from tensile_db.graph import Code
from tensile_db.kernels import codes, signs_on_gpu
from tensile_db.scheduler.packing.packed_graph import packable
from tests.steps.bitwise_runs import (
    as_planned,
    capture,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.filterwarnings("default")

aten = torch.ops.aten


@pytest.fixture(params=["triton", "torch"])
def packing(request, gpu, monkeypatch):
    """Sign kernels by Triton, and by PyTorch's own operators, which take their place where it makes none."""
    if request.param == "torch":
        monkeypatch.setattr(signs_on_gpu, "_has_kernels", lambda: False)
        monkeypatch.setattr(signs_on_gpu, "_has_dropout_kernels", lambda: False)
    else:
        some = torch.empty(1, device=gpu)
        assert signs_on_gpu.has_kernels_for(some), "Triton makes no kernels here"
        assert signs_on_gpu.has_dropout_kernels_for(some), "Triton's kernels for dropout are not PyTorch's"
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (3, 9), (4, 3, 81), (8, 64, 56, 56)])
def test_gradients_of_signs_have_the_bits_of_those_of_the_tensor(gpu, packing, shape, dtype):
    x, grad = (torch.randn(shape, device=gpu).to(dtype) for _ in range(2))
    x.view(-1)[::5], x.view(-1)[::7] = float("nan"), -0.0
    signs = codes.PACK_SIGNS(x)
    got, want = (
        codes.THRESHOLD_BACKWARD_OF_SIGNS(grad, signs, list(range(grad.dim()))),
        aten.threshold_backward(grad, x, 0),
    )
    assert torch.equal(got, want)
    mask = torch.rand(shape, device=gpu) < 0.7
    of_mask = codes.NATIVE_DROPOUT_BACKWARD_OF_SIGNS(
        grad, codes.PACK_SIGNS(mask), list(range(grad.dim())), 1 / 0.7
    )
    assert torch.equal(of_mask, aten.native_dropout_backward(grad, mask, 1 / 0.7))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_pooling_goes_backward_without_its_images(gpu, memory_format):
    # Windows that do not overlap: a GPU adds up those that do in any order.
    images = torch.randn(4, 16, 26, 26, device=gpu).relu_().contiguous(memory_format=memory_format)
    how = ([2, 2], [2, 2], [0, 0], [1, 1], False)
    pooled, indices = aten.max_pool2d_with_indices(images, *how)
    grad = torch.randn_like(pooled)
    want = aten.max_pool2d_with_indices_backward(grad, images, *how, indices)
    channels_last = memory_format is torch.channels_last
    code = codes.PACK_UINT16(indices)
    got = codes.MAX_POOL2D_BACKWARD_OF_CODES(grad, [26, 26], channels_last, *how, code)
    assert got.stride() == want.stride()
    assert torch.equal(got, want)


@pytest.mark.parametrize(("network", "optimizer"), [("vgg without resizing", "adamw"), ("mlp", "adam")])
def test_a_packed_training_equals_eager_pytorch(gpu, open_gpu, packing, network, optimizer):
    device, training = open_gpu(), training_of(network, optimizer, 8)
    want, losses = train_eagerly(training, gpu)
    step, state = capture(training, gpu)
    assert Code.SIGNS in {packing.code for packing in packable(step.graph).values()}
    plan = tight_plan(step, device, 0.6, "auto")
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)
