"""Ops on codes against PyTorch's own: bit for bit, in every dtype, length and layout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tensile_db.kernels import codes, signs_on_cpu, signs_on_gpu

aten, tensile = torch.ops.aten, torch.ops.tensile

#: Whole bytes and not, and more than is unpacked at a time.
LENGTHS = [0, 1, 7, 8, 9, 1000, (1 << 18) + 13]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def drawn(elements, dtype, seed=0):
    """Return numbers on both sides of zero, with zeros of both signs, infinities and NaNs among them."""
    x = torch.randn(elements, generator=torch.Generator().manual_seed(seed)).to(dtype)
    for every, value in ((5, float("nan")), (7, -0.0), (11, float("inf")), (13, 0.0), (17, -float("inf"))):
        x[::every] = value
    return x


def gradient(elements, dtype):
    """Return a gradient; which bits a NaN has, PyTorch's own kernels decide by where it stands in 16 bits."""
    grad = drawn(elements, dtype, seed=1)
    return grad if dtype is torch.float32 else grad.nan_to_num(2.0)


def along(x):
    """Return the dimensions of a dense tensor as they lie in memory."""
    return sorted(range(x.dim()), key=lambda dim: -x.stride(dim))


def same_bits(one, other):
    as_bits = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return one.stride() == other.stride() and torch.equal(one.view(as_bits), other.view(as_bits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", LENGTHS)
def test_gradients_of_signs_have_the_bits_of_those_of_the_tensor(elements, dtype):
    x, grad = drawn(elements, dtype), gradient(elements, dtype)
    signs = tensile.pack_signs(x)
    assert signs.shape == (-(-elements // 8),)
    assert same_bits(
        tensile.threshold_backward_of_signs(grad, signs, along(grad)), aten.threshold_backward(grad, x, 0)
    )
    noise = torch.empty_like(x).bernoulli_(0.9).div_(0.9)
    high = torch.ones((), dtype=dtype).div_(0.9).item()
    assert same_bits(tensile.mul_of_signs(grad, tensile.pack_signs(noise), along(grad), high), grad * noise)
    mask = noise > 0
    got = tensile.native_dropout_backward_of_signs(grad, tensile.pack_signs(mask), along(grad), 1 / 0.9)
    assert same_bits(got, aten.native_dropout_backward(grad, mask, 1 / 0.9))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_gradients_of_signs_are_laid_out_as_those_of_the_tensor(memory_format):
    x = drawn(2 * 16 * 6 * 6, torch.float32).view(2, 16, 6, 6).contiguous(memory_format=memory_format)
    grad = drawn(2 * 24 * 6 * 6, torch.float32, seed=1).view(2, 24, 6, 6)
    signs = tensile.pack_signs(x.as_strided((x.numel(),), (1,)))
    # As of one of the inputs of a concatenation; laid out otherwise; and one number for all pixels.
    part = grad.contiguous(memory_format=memory_format)[:, 4:20]
    for given in (part, grad[:, 4:20].permute(0, 1, 3, 2), grad[:, 4:20, :1, :1].expand(2, 16, 6, 6)):
        want = torch.empty_like(x).copy_(aten.threshold_backward(given, x, 0))
        assert same_bits(tensile.threshold_backward_of_signs(given, signs, along(x)), want)


@pytest.mark.parametrize("elements", [1, 16, 25, 1000])
def test_signs_are_packed_in_rows_of_whole_bytes(elements):
    x, grad = (drawn(2 * 3 * elements, torch.float32, seed).view(2, 3, elements) for seed in (0, 1))
    signs = tensile.pack_signs(x)
    assert signs.shape == (2, 3, -(-elements // 8))
    assert same_bits(
        tensile.threshold_backward_of_signs(grad, signs, along(grad)), aten.threshold_backward(grad, x, 0)
    )
    # A part of the rows has gaps between them.
    part, of_part = grad[:, 1:].contiguous(), signs[:, 1:]
    want = aten.threshold_backward(part, x[:, 1:].contiguous(), 0)
    assert same_bits(tensile.threshold_backward_of_signs(part, of_part, along(part)), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil_mode"), [(2, 2, 0, False), (3, 2, 1, True)])
@pytest.mark.parametrize("at_a_time", [None, 1])
def test_pooling_goes_backward_without_its_images(
    monkeypatch, memory_format, kernel, stride, padding, ceil_mode, dtype, at_a_time
):
    if at_a_time is not None:
        monkeypatch.setattr(codes, "_INDICES_NBYTES", at_a_time)
    images = torch.randn(3, 8, 13, 13).to(dtype).relu_().contiguous(memory_format=memory_format)
    how = ([kernel] * 2, [stride] * 2, [padding] * 2, [1, 1], ceil_mode)
    pooled, indices = aten.max_pool2d_with_indices(images, *how)
    grad = torch.randn_like(pooled)
    want = aten.max_pool2d_with_indices_backward(grad, images, *how, indices)
    channels_last = memory_format is torch.channels_last
    for given in (indices, tensile.pack_uint16(indices)):
        got = tensile.max_pool2d_backward_of_codes(grad, [13, 13], channels_last, *how, given)
        assert same_bits(got, want)


def test_indices_up_to_65535_fit_into_two_bytes():
    indices = torch.tensor([0, 1, 255, 256, 32767, 32768, 65535])
    assert torch.equal(tensile.pack_uint16(indices).to(torch.int64), indices)


@pytest.mark.parametrize("elements", LENGTHS)
def test_a_gpus_operators_pack_and_unpack_as_the_processors_do(elements, monkeypatch):
    monkeypatch.setattr(signs_on_gpu, "_AT_A_TIME", 1 << 12)
    for rows in (1, 3):
        x = drawn(rows * elements, torch.float32).view(rows, elements)
        signs = signs_on_cpu.pack(x)
        assert torch.equal(signs_on_gpu.pack_by_torch(x), signs)
        got, want = (list(each.unpacked(signs, elements)) for each in (signs_on_gpu, signs_on_cpu))
        none = torch.empty(0, dtype=torch.uint8)
        assert torch.equal(torch.cat([none, *got]), torch.cat([none, *want]))
        assert torch.equal(torch.cat([none, *want]), (~(x <= 0)).byte().view(-1))


@pytest.mark.slow
def test_tritons_kernels_compute_what_pytorchs_operators_do():
    """In a process of its own, for Triton looks for its interpreter when it is first imported."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines(), done.returncode) == (["all alike"], 0), done.stderr
