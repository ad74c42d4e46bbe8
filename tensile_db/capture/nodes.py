"""Reads a trace: which node is a call, what it reads, updates and makes, and which are needed.

A storage is known by its fake tensors' untyped storage.  A node that only makes views of what is there is no
call.  A call whose result nobody needs, and which neither updates persistent state nor draws random numbers,
is dropped.  Random ops are never dropped, since the numbers that later ones draw depend on them, and checks
neither, since the error that they may raise is eager's.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from tensile_db.capture import operators
from tensile_db.capture.factories import without_template
from tensile_db.capture.fakes.tensor_iterator import is_dense
from tensile_db.capture.storages import StorageKey, flattened, storage_key
from tensile_db.capture.trace import Trace

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A node of the trace that becomes a call."""

    node: fx.Node
    function: OpOverload
    #: Nodes, constants, and lists or tuples of these.
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: What it returns, flattened; fake tensors, and None or numbers as they come.
    results: tuple[Any, ...]
    reads: frozenset[StorageKey]
    updates: frozenset[StorageKey]
    makes: frozenset[StorageKey]
    random: bool
    #: Whether it is there for the error that it may raise.
    check: bool


def value_of(trace: Trace, node: fx.Node) -> Any:
    """Return a node's fake result; of an attribute of the traced module, the real constant."""
    if node.op == "get_attr":
        return getattr(trace.module, str(node.target))
    # What returns nothing has none.
    return node.meta.get("val")


def traced_calls(trace: Trace) -> list[TracedCall]:
    """Return the calls of a trace that are needed, in eager's order."""
    placeholders = [*trace.state.values(), *trace.inputs]
    known = {storage_key(value_of(trace, node)) for node in placeholders}
    calls = []
    for node in trace.module.graph.nodes:
        call = _call(trace, node, known)
        if call is not None:
            known |= call.makes
            calls.append(call)
    return _needed(trace, calls)


def _call(trace: Trace, node: fx.Node, known: set[StorageKey]) -> TracedCall | None:
    """Return the call that a node becomes; None for views, placeholders and the output."""
    if node.op == "get_attr":
        # A constant of the model's code: a call copies it to the device, so that it is a tensor like others.
        kwargs: dict[str, Any] = {}
        whole = _whole(value_of(trace, node))
        results: tuple[Any, ...] = (whole,)
        function, args = aten.clone.default, (whole,)
    elif node.op == "call_function" and node.target is not operator.getitem:
        assert isinstance(node.target, OpOverload), f"{node.target} is no ATen operator"
        results = tuple(flattened(value_of(trace, node)))
        function, args, kwargs = without_template(node.target, node.args, dict(node.kwargs), results[0])
    else:
        return None
    values, named = map_arg((args, kwargs), lambda used: value_of(trace, used))
    updates = frozenset(_keys(operators.written_arguments(function, values, named)))
    makes = frozenset(_keys(results)) - known
    random = operators.is_random(function, values, named)
    check = operators.is_check(function)
    if not (makes or updates or random or check):
        return None
    return TracedCall(
        node=node,
        function=function,
        args=args,
        kwargs=kwargs,
        results=results,
        reads=frozenset(_keys([values, list(named.values())])) - makes,
        updates=updates,
        makes=makes,
        random=random,
        check=check,
    )


def _whole(constant: Any) -> Any:
    """Return a constant, or all of its storage where a copy would not be laid out as it is."""
    if not isinstance(constant, torch.Tensor) or is_dense(constant):
        return constant
    return constant.as_strided((constant.untyped_storage().nbytes() // constant.itemsize,), (1,), 0)


def _needed(trace: Trace, calls: Sequence[TracedCall]) -> list[TracedCall]:
    persistent = {storage_key(value_of(trace, node)) for node in trace.state.values()}
    needed = {storage_key(value_of(trace, node)) for node in (trace.result, *trace.gradients.values())}
    kept = []
    for call in reversed(calls):
        if call.random or call.check or (call.updates | call.makes) & needed or call.updates & persistent:
            needed |= call.reads
            kept.append(call)
    kept.reverse()
    return kept


def _keys(value: Any) -> Iterator[StorageKey]:
    for item in flattened(value):
        if isinstance(item, torch.Tensor):
            yield storage_key(item)
