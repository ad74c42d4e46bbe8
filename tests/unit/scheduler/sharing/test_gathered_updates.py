"""Updates that wait for each other: the same instructions, proven, and those of one kind in rows."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing import gathered_updates, growing_range
from tensile_db.scheduler.sharing.gathered_updates import Gathered, gathered
from tensile_db.scheduler.verify import verify
from tests.examples import examples
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.usefixtures("little_effort")


@pytest.mark.slow
@given(st.data())
@examples(200)
def test_a_gathered_program_does_the_same_and_is_proven(data):
    graph = data.draw(training_graphs(max_layers=5))
    device = data.draw(devices())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    least, most = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    policy = data.draw(st.sampled_from(["vanilla", "tensile", "auto"]))
    device = replace(
        device, memory_nbytes=most if policy == "vanilla" else data.draw(st.integers(least, most))
    )
    (plan,) = plan_jobs([replace(job, policy=policy)], device)
    graph, program = planned_graph(graph, plan.plan), plan.program
    together_nbytes = data.draw(st.integers(1, 400))
    small_nbytes = data.draw(st.integers(10, 300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_updates, "TOGETHER_NBYTES", together_nbytes)
        patch.setattr(growing_range, "SMALL_NBYTES", small_nbytes)
        made = gathered(graph, program)
    event(f"rows: {min(len(made.rows), 2)}")
    assert Counter(made.program.instructions) == Counter(program.instructions)
    peak_nbytes = verify(graph, made.program.instructions, program.start_on_host)
    assert made.program.guaranteed_peak_nbytes == peak_nbytes
    assert peak_nbytes <= program.guaranteed_peak_nbytes + together_nbytes
    for ops in rows_of(graph, made):
        assert len({op.id for op in ops}) == len(ops) > 1
        assert len({op.target for op in ops}) == 1
        # None needs what another one changes.
        written = Counter(tensor for op in ops for tensor in op.writes)
        assert not any(written[tensor] > (tensor in op.writes) for op in ops for tensor in op.reads)
        assert set(written.values()) == {1}
    assert all_else(graph, made.program) == all_else(graph, program)


def test_updates_of_one_kind_go_in_step():
    graph, program = whole()
    made = gathered(graph, program)
    assert targets(graph, program) == 6 * ["aten.mul_.Tensor", "aten.add_.Tensor", "aten.add_.Tensor"]
    assert targets(graph, made.program) == 6 * ["aten.mul_.Tensor"] + 12 * ["aten.add_.Tensor"]
    assert [end - begin for begin, end in made.rows] == [6, 6, 6]
    # Of each parameter before the next step is taken with any.
    names = [[graph.tensors[op.writes[0]].role for op in ops] for ops in rows_of(graph, made)]
    assert names == [6 * ["optimizer_state"], 6 * ["optimizer_state"], 6 * ["parameter"]]


def test_adams_numbers_do_not_keep_its_updates_apart():
    graph, program = whole(optimizer="adamw")
    made = gathered(graph, program)
    # All but the first layer's weights, which with its gradient and temporaries are too large.
    assert [end - begin for begin, end in made.rows] == 8 * [5]


def test_large_tensors_are_updated_at_once(monkeypatch):
    graph, program = whole()
    largest_nbytes = max(tensor.nbytes for tensor in graph.tensors if tensor.persistent)
    monkeypatch.setattr(growing_range, "SMALL_NBYTES", largest_nbytes - 1)
    assert [end - begin for begin, end in gathered(graph, program).rows] == [5, 5, 5]


def test_no_more_wait_than_a_page_has_room_for(monkeypatch):
    graph, program = whole()
    sizes = [tensor.nbytes for tensor in graph.tensors if tensor.role is Role.GRADIENT]
    monkeypatch.setattr(gathered_updates, "TOGETHER_NBYTES", max(sizes) - 1)
    assert [end - begin for begin, end in gathered(graph, program).rows] == [5, 5, 5]
    monkeypatch.setattr(gathered_updates, "TOGETHER_NBYTES", 0)
    assert gathered(graph, program) == Gathered(program=program, rows=())


def test_a_parameter_that_leaves_the_device_when_it_is_updated_does_not_wait():
    graph, program = whole()
    parameter = graph.ops[updating_ops(graph)[2].id].writes[0]
    away = [
        CopyOut(tensor=parameter),
        Await(tensor=parameter),
        CopyIn(tensor=parameter),
        Await(tensor=parameter),
    ]
    moving = replace(program, instructions=(*program.instructions[:-1], *away, program.instructions[-1]))
    made = gathered(graph, moving)
    assert [end - begin for begin, end in made.rows] == [5, 5, 5]
    assert parameter not in {tensor for ops in rows_of(graph, made) for op in ops for tensor in op.writes}


def test_what_is_read_once_it_is_updated_does_not_wait():
    graph, _ = whole()
    report, parameter = graph.ops[-1], updating_ops(graph)[2].writes[0]
    reading = replace(report, reads=tuple(sorted((*report.reads, parameter))))
    graph = replace(graph, ops=(*graph.ops[:-1], reading))
    made = gathered(graph, lower(graph, vanilla.plan_one(graph)))
    assert [end - begin for begin, end in made.rows] == [5, 5, 5]


def test_what_updates_share_is_freed_when_none_of_them_waits():
    graph, _ = whole()
    ops = updating_ops(graph)
    (gradient,) = set(ops[1].reads) - set(ops[1].writes)
    both = replace(ops[4], reads=tuple(sorted((*ops[4].reads, gradient))))
    graph = replace(graph, ops=tuple(both if op.id == both.id else op for op in graph.ops))
    program = lower(graph, vanilla.plan_one(graph))
    made = gathered(graph, program)
    # Two of them are of another kind now.
    assert [end - begin for begin, end in made.rows] == [4, 4, 4]
    free = Free(tensor=gradient)
    taken = max(made.program.instructions.index(Compute(op=op.id)) for op in (ops[1], both))
    assert made.program.instructions.index(free) > taken


def whole(network="mlp", optimizer="momentum"):
    """Return the graph of a network, and the program of eager's order."""
    step, _ = capture_once(training_of(network, optimizer, 4))
    return step.graph, lower(step.graph, vanilla.plan_one(step.graph))


def updating_ops(graph):
    """Return the optimizer's ops."""
    return [op for op in graph.ops if op.phase is Phase.OPTIMIZER and op.writes]


def targets(graph, program):
    """Return what the optimizer's ops are, in the program's order."""
    own = {op.id for op in updating_ops(graph)}
    ops = [each.op for each in program.instructions if isinstance(each, Compute)]
    return [graph.ops[op].target for op in ops if op in own]


def rows_of(graph, made):
    """Return the ops of each row."""
    return [[graph.ops[each.op] for each in made.program.instructions[begin:end]] for begin, end in made.rows]


def all_else(graph, program):
    """Return what is none of the optimizer's, nor frees what its ops take."""
    ops = updating_ops(graph)
    own = {Compute(op=op.id) for op in ops}
    own |= {Free(tensor=tensor) for op in ops for tensor in (*op.reads, *op.writes)}
    return [each for each in program.instructions if each not in own]
