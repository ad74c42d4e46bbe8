"""Triton's kernels, run by its interpreter on the processor, against the processor's own; a script."""

import sys

import pytest
import torch

from tensile_db.kernels import signs_on_cpu, signs_triton

CPU = torch.device("cpu")


def main():
    signs_triton.try_out(CPU)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows, elements in ((1, 0), (1, 1), (3, 9), (3, 16), (7, 1025), (5, 2056)):
            x, grad = torch.randn(2, rows, elements).to(dtype)
            for every, value in ((5, float("nan")), (7, -0.0), (11, float("inf")), (13, 0.0)):
                x[:, ::every] = value
            signs, out = signs_triton.pack(x), torch.empty_like(x)
            signs_triton.mask(grad, signs, out)
            assert torch.equal(signs, signs_on_cpu.pack(x)), (dtype, elements)
            assert torch.equal(out, torch.ops.aten.threshold_backward(grad, x, 0)), (dtype, elements)
    right = signs_triton.mask
    signs_triton.mask = lambda grad, signs, out: out.copy_(grad)
    with pytest.raises(RuntimeError, match="wrong results"):
        signs_triton.try_out(CPU)
    signs_triton.mask = right
    sys.stdout.write("all alike\n")


if __name__ == "__main__":
    main()
