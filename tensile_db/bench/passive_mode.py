"""Capuchin's first iteration: tensors are swapped on demand, with nothing known in advance.

Source: Capuchin section 5.2.  Where memory is short, tensors are evicted from the front of the list of
accesses, the least recently accessed first; a tensor that is not there when it is accessed is copied back.
Ops wait for both.
Differs: the paper picks tensors of about the size that is missing; here the oldest go until there is room.
"""

from collections.abc import Sequence

from tensile_db.errors import DoesNotFit
from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec, Release
from tensile_db.scheduler.policies import vanilla


def iteration_ns(
    graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec, budget_nbytes: int
) -> int:
    """Return the time of an iteration in passive mode within a budget.

    latencies_ns: by op id.  Raises DoesNotFit where a single op exceeds the budget.
    """
    return _Passive(graph, latencies_ns, device, budget_nbytes).run()


class _Passive:
    def __init__(
        self, graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec, budget_nbytes: int
    ) -> None:
        self._graph = graph
        self._latencies_ns = latencies_ns
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._now_ns = 0
        #: On the device, the least recently accessed first.
        self._held: dict[TensorId, None] = {}
        self._held_nbytes = 0
        #: Tensors whose copy on the host is theirs still.
        self._on_host: set[TensorId] = set()

    def run(self) -> int:
        """Walk the ops."""
        released: dict[int, list[TensorId]] = {}
        for event in vanilla.plan_one(self._graph).events:
            if isinstance(event, Release):
                released.setdefault(event.after_op, []).append(event.tensor)
        for kept in self._graph.tensors:
            if kept.persistent and self._held_nbytes + kept.nbytes <= self._budget_nbytes:
                self._hold(kept.id)
            elif kept.persistent:
                self._on_host.add(kept.id)
        for op in self._graph.ops:
            needed = dict.fromkeys((*op.reads, *op.writes))
            for tensor in needed:
                self._access(tensor, needed, op.workspace_nbytes)
            self._now_ns += self._latencies_ns[op.id]
            self._on_host.difference_update(op.writes)
            for tensor in released.get(op.id, ()):
                if tensor in self._held:
                    self._drop(tensor)
                self._on_host.discard(tensor)
        return self._now_ns

    def _access(self, tensor: TensorId, needed: dict[TensorId, None], workspace_nbytes: int) -> None:
        if tensor in self._held:
            self._held[tensor] = self._held.pop(tensor)
            return
        nbytes = self._graph.tensors[tensor].nbytes
        for oldest in list(self._held):
            if self._held_nbytes + nbytes + workspace_nbytes <= self._budget_nbytes:
                break
            if oldest not in needed:
                self._evict(oldest)
        if self._held_nbytes + nbytes + workspace_nbytes > self._budget_nbytes:
            raise DoesNotFit(
                needed_nbytes=self._held_nbytes + nbytes + workspace_nbytes, budget_nbytes=self._budget_nbytes
            )
        if tensor in self._on_host:
            self._now_ns += copy_ns(nbytes, self._device.h2d_bytes_per_s)
        self._hold(tensor)

    def _evict(self, tensor: TensorId) -> None:
        if tensor not in self._on_host:
            self._now_ns += copy_ns(self._graph.tensors[tensor].nbytes, self._device.d2h_bytes_per_s)
            self._on_host.add(tensor)
        self._drop(tensor)

    def _hold(self, tensor: TensorId) -> None:
        self._held[tensor] = None
        self._held_nbytes += self._graph.tensors[tensor].nbytes

    def _drop(self, tensor: TensorId) -> None:
        del self._held[tensor]
        self._held_nbytes -= self._graph.tensors[tensor].nbytes
