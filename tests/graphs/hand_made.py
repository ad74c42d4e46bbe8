"""Small graphs written by hand, for tests that state one rule each."""

from collections.abc import Sequence

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import DeviceSpec

#: (target, phase, reads, writes, recomputable)
OpRow = tuple[str, Phase, Sequence[int], Sequence[int], bool]


def graph_of(tensors: Sequence[tuple[int, Role]], ops: Sequence[OpRow]) -> StepGraph:
    """Return a graph of (nbytes, role) tensors and op rows; parameters, buffers and states are persistent."""
    lasting = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)
    return StepGraph(
        tensors=tuple(
            Tensor(
                id=TensorId(index),
                nbytes=nbytes,
                dtype="uint8",
                shape=(nbytes,),
                role=role,
                persistent=role in lasting,
                name=f"tensor{index}",
            )
            for index, (nbytes, role) in enumerate(tensors)
        ),
        ops=tuple(
            Op(
                id=OpId(index),
                target=target,
                phase=phase,
                reads=tuple(TensorId(t) for t in sorted(reads)),
                writes=tuple(TensorId(t) for t in sorted(writes)),
                workspace_nbytes=0,
                flops=0,
                moved_nbytes=0,
                recomputable=recomputable,
            )
            for index, (target, phase, reads, writes, recomputable) in enumerate(ops)
        ),
    )


def device_of(memory_nbytes: int, bytes_per_s: int = 10**9, *, duplex: bool = True) -> DeviceSpec:
    """Return a device; at the default rate a byte takes a nanosecond each way."""
    return DeviceSpec(
        name="hand-made",
        memory_nbytes=memory_nbytes,
        d2h_bytes_per_s=bytes_per_s,
        h2d_bytes_per_s=bytes_per_s,
        duplex=duplex,
        flops_per_s=10**9,
        memory_bytes_per_s=10**9,
        op_overhead_ns=1,
    )


def chain(state_nbytes: int = 0) -> StepGraph:
    """Return a step of two layers; with `state_nbytes`, tensor 10 is an optimizer state of parameter a.

    0 parameter a (10 B), 1 parameter b (10 B), 2 input (40 B), 3 hidden (100 B), 4 output (20 B), 5 loss (1
    B), 6 gradient of the output (20 B), 7 gradient of the hidden (100 B), 8 gradient of b (10 B), 9 gradient
    of a (10 B).
    """
    forward, backward, optimizer = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
    states = [10] if state_nbytes else []
    return graph_of(
        [
            (10, Role.PARAMETER),
            (10, Role.PARAMETER),
            (40, Role.INPUT),
            (100, Role.ACTIVATION),
            (20, Role.ACTIVATION),
            (1, Role.OUTPUT),
            (20, Role.ACTIVATION),
            (100, Role.ACTIVATION),
            (10, Role.GRADIENT),
            (10, Role.GRADIENT),
            *((state_nbytes, Role.OPTIMIZER_STATE) for _ in states),
        ],
        [
            ("tensile.load_batch", forward, [], [2], False),
            ("layer", forward, [0, 2], [3], True),
            ("layer", forward, [1, 3], [4], True),
            ("loss", forward, [4], [5], True),
            ("loss_backward", backward, [4], [6], True),
            ("layer_backward", backward, [1, 3, 6], [7, 8], True),
            ("layer_backward", backward, [2, 7], [9], True),
            ("update", optimizer, [1, 8], [1], False),
            ("update", optimizer, [0, 9, *states], [0, *states], False),
            ("tensile.report", optimizer, [5], [], False),
        ],
    )
