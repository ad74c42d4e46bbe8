"""Recomputation chains by hand, and over random graphs against values that stand for themselves."""

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import access_table
from tensile_db.scheduler.analysis.chains import Chain, find_chain
from tests.examples import examples
from tests.graphs.hand_made import graph_of
from tests.graphs.random_graphs import training_graphs


def _normalized() -> StepGraph:
    """Return a step with a batch norm and an in-place relu_.

    0 weight (8 B), 1 running mean (2 B), 2 input (30 B), 3 convolved (40 B), 4 normalized (40 B), 5 saved
    mean (2 B), 6 pooled (10 B), 7 indices (20 B), 8 loss (1 B), 9 gradient (40 B).
    """
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    activation = Role.ACTIVATION
    return graph_of(
        [
            (8, Role.PARAMETER),
            (2, Role.BUFFER),
            (30, Role.INPUT),
            *((nbytes, activation) for nbytes in (40, 40, 2, 10, 20)),
            (1, Role.OUTPUT),
            (40, activation),
        ],
        [
            ("tensile.load_batch", forward, [], [2], False),
            ("convolution", forward, [0, 2], [3], True),
            ("batch_norm", forward, [1, 3], [1, 4, 5], True),
            ("relu_", forward, [4], [4], True),
            ("max_pool", forward, [4], [6, 7], True),
            ("loss", forward, [6], [8], True),
            ("backward", backward, [3, 4, 5, 6, 7], [9], True),
            ("update", Phase.OPTIMIZER, [0, 9], [0], False),
            ("tensile.report", Phase.OPTIMIZER, [3, 6, 8], [], False),
        ],
    )


def _chain(tensor: int, before: int, away: set[int], max_ops: int | None = None) -> Chain | None:
    table = access_table(_normalized())
    return find_chain(table, TensorId(tensor), before, lambda other: other not in away, max_ops=max_ops)


def test_what_a_batch_norm_made_and_relu_changed_takes_both_ops_and_leaves_the_statistics_alone():
    assert _chain(4, 6, away=set()) == Chain(
        tensor=TensorId(4), ops=(2, 3), inputs=(1, 3), by_products=(5,), extra_nbytes=2
    )


def test_a_chain_goes_on_to_the_producers_of_what_is_away():
    chain = _chain(6, 6, away={3, 4, 7})
    assert chain is not None
    assert (chain.ops, chain.inputs, chain.by_products) == ((1, 2, 3, 4), (0, 1, 2), (3, 4, 5, 7))
    # Convolved, normalized and indices wait for the last op; the saved mean is there, and twice only while
    # the batch norm runs: not at the peak.
    assert chain.extra_nbytes == 40 + 40 + 20
    assert chain.time_ns([1, 10, 100, 1000, 10000, 1, 1, 1, 1]) == 11110


def test_a_second_copy_counts_while_its_op_runs():
    # The statistics are there: twice while the batch norm runs, which is the peak.
    assert _chain(4, 6, away={3}) == Chain(
        tensor=TensorId(4), ops=(1, 2, 3), inputs=(0, 1, 2), by_products=(3, 5), extra_nbytes=40 + 2
    )


def test_a_longer_chain_than_allowed_is_none():
    assert _chain(6, 6, away={3, 4}, max_ops=4) is not None
    assert _chain(6, 6, away={3, 4}, max_ops=3) is None


def test_what_may_not_run_again_ends_the_search():
    assert _chain(2, 6, away=set()) is None
    assert _chain(3, 6, away={2}) is None


def test_a_parameter_updated_since_is_no_source():
    assert _chain(3, 7, away=set()) is not None
    assert _chain(3, 8, away=set()) is None


def test_what_the_first_op_reads_is_an_input_as_well():
    forward = Phase.FORWARD
    rows = [("first", forward, [0], [1], True), ("second", forward, [], [], True)]
    graph = graph_of([(8, Role.PARAMETER), (8, Role.ACTIVATION)], [*rows, ("third", forward, [1], [], True)])
    chain = find_chain(access_table(graph), TensorId(1), 2, lambda _: True)
    assert chain is not None
    assert chain.inputs == (0,)


def test_persistent_tensors_that_are_away_are_no_source_and_never_restored():
    assert _chain(3, 6, away={0}) is None
    assert _chain(4, 6, away={1}) is None
    assert _chain(0, 6, away=set()) is None


def test_a_chain_never_leaves_an_older_value_behind():
    forward = Phase.FORWARD
    graph = graph_of(
        [(4, Role.INPUT), (4, Role.ACTIVATION), (4, Role.ACTIVATION), (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", forward, [], [0], False),
            ("both", forward, [0], [1, 2], True),
            ("relu_", forward, [2], [2], True),
            ("loss", forward, [1, 2], [3], True),
            ("tensile.report", Phase.OPTIMIZER, [1, 2, 3], [], False),
        ],
    )
    table = access_table(graph)
    # Making tensor 1 makes tensor 2 as it was before relu_.
    assert find_chain(table, TensorId(1), 3, lambda tensor: True) is None
    away = find_chain(table, TensorId(1), 3, lambda tensor: tensor != 2)
    assert away is not None
    assert away.ops == (1,)


@given(st.data())
@examples(300)
def test_running_a_chain_gives_the_tensor_its_value_and_changes_nothing_else(data):
    graph = data.draw(training_graphs())
    table = access_table(graph)
    before = data.draw(st.integers(2, len(graph.ops) - 1))
    there = _values(graph, before)
    activations = [t for t in there if graph.tensors[t].role is Role.ACTIVATION]
    tensor = data.draw(st.sampled_from(activations))
    # What comes before a tensor is away more often than not, so that chains get long.
    away = data.draw(st.sets(st.sampled_from(activations), max_size=4)) | {
        t for t in activations if data.draw(st.booleans())
    }
    away.discard(tensor)
    chain = find_chain(table, tensor, before, lambda other: other in there and other not in away)
    event("no chain" if chain is None else f"{min(len(chain.ops), 4)} ops or more")
    if chain is None:
        return
    held = {t: value for t, value in there.items() if t not in away | {tensor}}
    assert set(chain.inputs) <= set(held)
    after = dict(held)
    peak_nbytes = nbytes = sum(graph.tensors[t].nbytes for t in held)
    for op_id in chain.ops:
        op = graph.ops[op_id]
        made = [t for t in op.writes if not graph.tensors[t].persistent]
        twice = [t for t in made if t in after and t not in op.reads]
        _run(graph, op_id, after, again=True)
        nbytes = sum(graph.tensors[t].nbytes for t in after)
        running_nbytes = op.workspace_nbytes + sum(graph.tensors[t].nbytes for t in twice)
        peak_nbytes = max(peak_nbytes, nbytes + running_nbytes)
    held_nbytes = sum(graph.tensors[t].nbytes for t in held)
    assert peak_nbytes - held_nbytes - graph.tensors[tensor].nbytes == chain.extra_nbytes
    assert after[tensor] == there[tensor]
    assert {t: after[t] for t in held} == held
    assert set(after) - set(held) - {tensor} <= set(chain.by_products)


def _values(graph: StepGraph, before: int) -> dict[TensorId, object]:
    """Return what each tensor made so far holds before an op: a value is the history that led to it."""
    values: dict[TensorId, object] = {t.id: t.name for t in graph.tensors if t.persistent}
    for op in graph.ops[:before]:
        _run(graph, op.id, values, again=False)
    return values


def _run(graph: StepGraph, op_id, values, *, again: bool) -> None:
    op = graph.ops[op_id]
    # What an op updates in a persistent tensor does not bear on its other results here, as in a batch norm.
    updated = {t for t in op.reads if t in op.writes and graph.tensors[t].persistent}
    seen = hash((op_id, *(values[t] for t in op.reads if t not in updated)))
    for tensor in op.writes:
        if tensor in updated:
            values[tensor] = values[tensor] if again else hash((seen, values[tensor]))
        elif not (again and graph.tensors[tensor].persistent):
            values[tensor] = hash((seen, tensor))
