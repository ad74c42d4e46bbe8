"""A planned iteration in Chrome's trace event format, for Perfetto and chrome://tracing.

One process with a row each for computation and the two copy channels, and a counter of the device's memory.

Source: Chrome's trace event format: complete events ("X"), instants ("i"), counters ("C"), metadata ("M");
times in microseconds.
"""

from typing import Any

from tensile_db.graph import StepGraph
from tensile_db.scheduler.timeline import CopySpan, OpSpan, Timeline

_PROCESS = 1
_COMPUTE, _TO_HOST, _TO_DEVICE = 1, 2, 3
_ROWS = {_COMPUTE: "compute", _TO_HOST: "copies to the host", _TO_DEVICE: "copies to the device"}


def trace_of(graph: StepGraph, timeline: Timeline, title: str) -> dict[str, Any]:
    """Return the trace as an object to be written as JSON; title: the process's name."""
    events: list[dict[str, Any]] = [
        _event("process_name", "M", args={"name": title}),
        *(_event("thread_name", "M", row=row, args={"name": name}) for row, name in _ROWS.items()),
        *(_event("thread_sort_index", "M", row=row, args={"sort_index": row}) for row in _ROWS),
        *(_of_op(graph, span) for span in timeline.ops),
        *(_of_copy(graph, span) for span in timeline.copies),
        *(
            _event("device memory", "C", at_ns=at_ns, args={"bytes": nbytes})
            for at_ns, nbytes in timeline.memory
        ),
    ]
    # Copies over the iteration's end last beyond it.
    others = {"period_ns": timeline.period_ns}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": others}


def _of_op(graph: StepGraph, span: OpSpan) -> dict[str, Any]:
    op = graph.ops[span.op]
    return _event(
        op.target,
        "X",
        row=_COMPUTE,
        at_ns=span.begin_ns,
        until_ns=span.end_ns,
        category="recompute" if span.recompute else str(op.phase),
        args={
            "op": op.id,
            "reads": [graph.tensors[tensor].name for tensor in op.reads],
            "writes": [graph.tensors[tensor].name for tensor in op.writes],
            "workspace_nbytes": op.workspace_nbytes,
        },
    )


def _of_copy(graph: StepGraph, span: CopySpan) -> dict[str, Any]:
    tensor = graph.tensors[span.tensor]
    # Nothing is copied of a tensor that the host has: an instant, which may fall within another copy.
    is_copied = span.end_ns > span.begin_ns
    return _event(
        tensor.name,
        "X" if is_copied else "i",
        row=_TO_HOST if span.to_host else _TO_DEVICE,
        at_ns=span.begin_ns,
        until_ns=span.end_ns if is_copied else None,
        category="swap_out" if span.to_host else "swap_in",
        args={
            "tensor": tensor.id,
            "nbytes": tensor.nbytes,
            "copied_nbytes": tensor.nbytes if is_copied else 0,
            "role": str(tensor.role),
        },
    )


def _event(
    name: str,
    kind: str,
    *,
    args: dict[str, Any],
    row: int = _COMPUTE,
    at_ns: int = 0,
    until_ns: int | None = None,
    category: str = "",
) -> dict[str, Any]:
    event: dict[str, Any] = {"name": name, "ph": kind, "pid": _PROCESS, "tid": row, "args": args}
    if kind != "M":
        event["ts"] = at_ns / 1000
    if kind == "i":
        # Drawn in its row alone.
        event["s"] = "t"
    if until_ns is not None:
        event["dur"] = (until_ns - at_ns) / 1000
    if category:
        event["cat"] = category
    return event
