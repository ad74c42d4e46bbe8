"""What an op's workspace depends on, beside the hardware: its operator, and how its arguments lie.

A kernel, and with it its workspace, is chosen by dtypes, sizes, strides, alignment and parameters, not by
what tensors hold.  So two calls with equal signatures, of whichever jobs, need the same.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensile_db.capture.step import Call, CapturedStep, RandomSource, Scalar, View
from tensile_db.graph import Op

#: Kernels ask for no more than that of an address: cuBLASLt tells 256 bytes from fewer, cuDNN 16.
_ALIGNED_TO = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """An op as far as its workspace goes; equal ones have equal digests."""

    #: SHA-256 of the rest, in hexadecimal.
    digest: str
    #: The ATen operator.
    kind: str
    #: JSON.
    content: Mapping[str, Any]


def step_signatures(step: CapturedStep) -> tuple[Signature | None, ...]:
    """Return each op's signature, by op id; None of those that run no kernel of PyTorch's."""
    return tuple(
        None if call.function is None else _signature(step, op, call)
        for op, call in zip(step.graph.ops, step.calls, strict=True)
    )


def _signature(step: CapturedStep, op: Op, call: Call) -> Signature:
    content = {
        "arguments": _described([*call.args, dict(call.kwargs)]),
        "results": [
            # One that lies otherwise than was captured is laid out anew, for which a moment both are there.
            None if view is None else _described(view) | {"nbytes": step.graph.tensors[view.tensor].nbytes}
            for view in call.outputs
        ],
    }
    if call.recompute_args is not None:
        content["again"] = _described(call.recompute_args)
    if step.tf32:
        content["tf32"] = True
    text = json.dumps([op.target, content], sort_keys=True, separators=(",", ":"))
    return Signature(digest=hashlib.sha256(text.encode()).hexdigest(), kind=op.target, content=content)


def _described(value: Any) -> Any:
    match value:
        case View():
            return {
                "dtype": str(value.dtype).removeprefix("torch."),
                "size": list(value.size),
                "stride": list(value.stride),
                "misaligned": value.offset * value.dtype.itemsize % _ALIGNED_TO,
            }
        case Scalar():
            return "changing"
        case RandomSource():
            return "generator"
        case None | bool() | int() | str():
            return value
        case float():
            # Rates and decays are a job's own, and choose no kernel; 0 and 1 may.
            return value if value in (0.0, 1.0) else "number"
        case Mapping():
            return {name: _described(item) for name, item in sorted(value.items())}
        case Iterable():
            return [_described(item) for item in value]
        case _:
            # A dtype, a layout, a memory format, a device.
            return str(value)
