"""What can be packed in the bound, how many bytes each code has, and what it costs and saves the ops.

A plan that packs a tensor makes its code behind the last write of it, lets go of it after the last op that
takes it whole, and runs what takes it behind that with the code.  In the bound an op that takes several
codes takes the less of its times with all and with none, and a code that several ops take has no bytes.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bounds import time_of_ops_ns
from tensile_db.scheduler.packing.latencies import packed_latencies_ns
from tensile_db.scheduler.packing.packed_graph import known_packed_graph, packable
from tensile_db.scheduler.plan import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How a tensor may be packed."""

    #: Of the code; 0 where several ops take it.
    nbytes: int
    pack_ns: int
    #: The last op that writes the tensor, and those that take the code, at least one.
    made_by: OpId
    taken_by: tuple[OpId, ...]
    #: What each of these takes less with the code; negative where it takes more.
    saved_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """What can be packed in a graph, and what becomes of its ops then."""

    #: By tensor, ascending.
    codings: Mapping[TensorId, Coding]
    #: By op id, with nothing packed; and with what makes it take the least.
    latencies_ns: Sequence[int]
    least_ns: Sequence[int]
    #: The graph with ops that do not read what they take the shape of alone, where codes may spare them that.
    graph: StepGraph
    #: The same with ops that read nothing of what can be packed, either.
    leanest: StepGraph


def find_codes(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> Codes:
    """Return what can be packed; latencies_ns: by op id, shape (ops,)."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    without_ns, least_ns = list(latencies_ns), list(latencies_ns)
    ops, leanest = list(graph.ops), list(graph.ops)
    packed_from = {code: tensor for tensor, code in packed.codes.items()}
    pack_ns: dict[TensorId, int] = {}
    taken_by: dict[TensorId, dict[OpId, int]] = {code: {} for code in packed.codes.values()}
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    for op, made_from, took_ns in zip(packed.graph.ops, packed.ops, with_codes_ns, strict=True):
        if made_from is None:
            pack_ns[op.writes[0]] = took_ns
            continue
        codes = [tensor for tensor in op.reads if tensor in taken_by]
        least_ns[made_from] = min(latencies_ns[made_from], took_ns)
        if len(codes) > 1:
            without_ns[made_from] = least_ns[made_from]
        for code in codes:
            taken_by[code][made_from] = latencies_ns[made_from] - took_ns if len(codes) == 1 else 0
        of_codes = {packed_from[code] for code in codes}
        reads = tuple(tensor for tensor in op.reads if tensor not in taken_by)
        whole = ops[made_from] = replace(
            ops[made_from], reads=tuple(sorted({*reads, *of_codes})), shapes=op.shapes
        )
        leanest[made_from] = replace(whole, reads=reads, codes=op.codes)
    last_write = {tensor: op.id for op in graph.ops for tensor in op.writes}
    codings = {
        tensor: Coding(
            nbytes=packed.graph.tensors[code].nbytes if len(taken_by[code]) == 1 else 0,
            pack_ns=pack_ns[code],
            made_by=last_write[tensor],
            taken_by=tuple(taken_by[code]),
            saved_ns=tuple(taken_by[code].values()),
        )
        for tensor, code in sorted(packed.codes.items())
        if taken_by[code]
    }
    return Codes(
        codings=codings,
        latencies_ns=without_ns,
        least_ns=least_ns,
        graph=replace(graph, ops=tuple(ops)),
        leanest=replace(graph, ops=tuple(leanest)),
    )


def least_ops_ns(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> int:
    """Return the least time that the ops take, whatever is packed: codes cost time, and save some."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    saved_ns = dict.fromkeys(packed.codes.values(), 0)
    for op, made_from, took_ns in zip(packed.graph.ops, packed.ops, with_codes_ns, strict=True):
        if made_from is None:
            saved_ns[op.writes[0]] -= took_ns
            continue
        for code in saved_ns.keys() & set(op.reads):
            saved_ns[code] += latencies_ns[made_from] - took_ns
    return time_of_ops_ns(latencies_ns) - sum(max(0, saved) for saved in saved_ns.values())
