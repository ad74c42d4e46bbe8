"""What codes cost: packing and gradients of codes beside the ops that take the tensors themselves."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from bench.gpu.machine import Machine
from tensile_db.kernels import codes, signs_on_gpu
from tensile_db.worker.devices.device import Device

aten, tensile = torch.ops.aten, torch.ops.tensile

#: VGG-16's first block at batch 16, and a small one.
_LARGE, _SMALL = (16, 64, 224, 224), (2, 8, 32, 32)
_POOLING = ([2, 2], [2, 2], [0, 0], [1, 1], False)
#: Of elements that dropout keeps.
_KEPT = 0.9
_TIMES = 5


def check(machine: Machine, device: Device) -> dict[str, Any]:
    """Times in ns by op, and whether every gradient of codes has the bits of the one without."""
    shape = _LARGE if machine.is_gpu else _SMALL
    with device.computing():
        x = torch.randn(shape, device=machine.torch_device).relu_()
        grad = torch.randn_like(x)
        signs = codes.PACK_SIGNS(x.view(shape[0], -1))
        pooled, indices = aten.max_pool2d_with_indices(x, *_POOLING)
        code = codes.PACK_UINT16(indices)
        of_pooled = torch.randn_like(pooled)
        image_size = list(shape[2:])
        kept = torch.rand(shape, device=machine.torch_device) < _KEPT
        kept_signs = codes.PACK_SIGNS(kept.view(shape[0], -1))
        works: dict[str, Callable[[], torch.Tensor]] = {
            "threshold_backward": lambda: aten.threshold_backward(grad, x, 0),
            "threshold_backward_of_signs": lambda: codes.THRESHOLD_BACKWARD_OF_SIGNS(
                grad, signs, list(range(grad.dim()))
            ),
            "pack_signs": lambda: codes.PACK_SIGNS(x.view(shape[0], -1)),
            "native_dropout_backward": lambda: aten.native_dropout_backward(grad, kept, 1 / _KEPT),
            "native_dropout_backward_of_signs": lambda: codes.NATIVE_DROPOUT_BACKWARD_OF_SIGNS(
                grad, kept_signs, list(range(grad.dim())), 1 / _KEPT
            ),
            "pack_mask": lambda: codes.PACK_SIGNS(kept.view(shape[0], -1)),
            "max_pool2d_backward": lambda: aten.max_pool2d_with_indices_backward(
                of_pooled, x, *_POOLING, indices
            ),
            "max_pool2d_backward_of_codes": lambda: codes.MAX_POOL2D_BACKWARD_OF_CODES(
                of_pooled, image_size, False, *_POOLING, code
            ),
            "pack_uint16": lambda: codes.PACK_UINT16(indices),
        }
        if machine.is_gpu:
            works["pack_signs_without_triton"] = lambda: signs_on_gpu.pack_by_torch(x.view(shape[0], -1))
        took = {f"{name}_ns": _median_ns(device, work) for name, work in works.items()}
        same = {
            "threshold_backward": torch.equal(
                works["threshold_backward"](), works["threshold_backward_of_signs"]()
            ),
            "native_dropout_backward": torch.equal(
                works["native_dropout_backward"](), works["native_dropout_backward_of_signs"]()
            ),
            "max_pool2d_backward": torch.equal(
                works["max_pool2d_backward"](), works["max_pool2d_backward_of_codes"]()
            ),
        }
        made_by_triton = signs_on_gpu.has_kernels_for(x)
    return {"shape": list(shape), "triton": made_by_triton, "same": same, **took}


def _median_ns(device: Device, work: Callable[[], torch.Tensor]) -> int:
    work()
    found = []
    for _ in range(_TIMES):
        marks = [device.record()]
        made = work()
        marks.append(device.record())
        device.finish()
        found.append(device.elapsed_ns(*marks))
        del made
    return int(median(found))
