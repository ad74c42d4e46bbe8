"""Triton's kernels, run by its interpreter on the processor, against the processor's own; a script."""

import sys

import pytest
import torch

from tensile_db.kernels import signs_on_cpu, signs_triton
from tensile_db.kernels.signs_on_gpu import DTYPES

CPU = torch.device("cpu")


def same_bits(one, two):
    return torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def main():
    signs_triton.try_out(CPU, DTYPES)
    signs_triton.try_out_dropout(CPU, [torch.float32])
    for dtype in DTYPES:
        for rows, elements in ((1, 0), (1, 1), (3, 9), (3, 16), (7, 1025), (5, 2056)):
            x, grad = torch.randn(2, rows, elements).to(dtype)
            for every, value in ((5, float("nan")), (7, -0.0), (11, float("inf")), (13, 0.0)):
                x[:, ::every] = value
            signs, out = signs_triton.pack(x), torch.empty_like(x)
            signs_triton.mask(grad, signs, out)
            assert torch.equal(signs, signs_on_cpu.pack(x)), (dtype, elements)
            assert torch.equal(out, torch.ops.aten.threshold_backward(grad, x, 0)), (dtype, elements)
            kept = torch.rand(rows, elements) < 0.7
            packed = signs_triton.pack(kept)
            assert torch.equal(packed, signs_on_cpu.pack(kept)), (dtype, elements)
            signs_triton.scaled_mask(grad, packed, out, 1 / 0.7)
            # As GPUs round, once.  The interpreter cuts off what does not fit into bfloat16; a processor's
            # own operator rounds twice but in float32.
            want = (kept * grad.float() * (1 / 0.7)).to(dtype)
            near = {"rtol": 2**-7, "atol": 0} if dtype is torch.bfloat16 else {"rtol": 0, "atol": 0}
            torch.testing.assert_close(out, want, **near)
            if dtype is torch.float32:
                assert same_bits(out, torch.ops.aten.native_dropout_backward(grad, kept, 1 / 0.7))
    scaled = signs_triton.scaled_mask
    signs_triton.scaled_mask = lambda grad, signs, out, scale: scaled(grad, signs, out, 1.5)
    with pytest.raises(RuntimeError, match="gradients of dropout"):
        signs_triton.try_out_dropout(CPU, [torch.float32])
    signs_triton.scaled_mask = scaled
    right = signs_triton.mask
    signs_triton.mask = lambda grad, signs, out: out.copy_(grad)
    with pytest.raises(RuntimeError, match="wrong results"):
        signs_triton.try_out(CPU, DTYPES)
    signs_triton.mask = right
    sys.stdout.write("all alike\n")


if __name__ == "__main__":
    main()
