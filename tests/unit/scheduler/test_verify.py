"""What the verifier refuses, one defect a test."""

from dataclasses import replace

import pytest

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction
from tensile_db.scheduler.verify import verify
from tests.graphs.hand_made import chain, graph_of

HIDDEN = TensorId(3)


def _vanilla() -> list[Instruction]:
    return list(lower(chain(), plan_one(chain())).instructions)


def _at(instructions: list[Instruction], op: int) -> int:
    return instructions.index(Compute(op=OpId(op)))


def test_the_vanilla_peak_is_what_the_largest_backward_op_finds_and_makes():
    # Persistent 20, input 40, hidden 100, loss 1, output's gradient 20, hidden's gradient 100, b's gradient
    # 10.
    assert verify(chain(), _vanilla(), ()) == 291


def test_a_tensor_away_between_its_uses_does_not_count():
    instructions = _vanilla()
    at = _at(instructions, 3)
    instructions[at:at] = [CopyOut(tensor=HIDDEN), Await(tensor=HIDDEN)]
    at = _at(instructions, 5)
    instructions[at:at] = [CopyIn(tensor=HIDDEN), Await(tensor=HIDDEN)]
    assert verify(chain(), instructions, ()) == 291


def test_an_op_that_reads_a_tensor_on_the_host_is_refused():
    instructions = _vanilla()
    at = _at(instructions, 3)
    instructions[at:at] = [CopyOut(tensor=HIDDEN), Await(tensor=HIDDEN)]
    with pytest.raises(InvalidPlan, match="op 5 reads tensor 3, which is HOST"):
        verify(chain(), instructions, ())


def test_an_op_that_reads_a_tensor_before_its_copy_is_awaited_is_refused():
    instructions = _vanilla()
    at = _at(instructions, 3)
    instructions[at:at] = [CopyOut(tensor=HIDDEN), Await(tensor=HIDDEN), CopyIn(tensor=HIDDEN)]
    with pytest.raises(InvalidPlan, match="op 5 reads tensor 3, which is ARRIVING"):
        verify(chain(), instructions, ())


def test_an_op_that_writes_a_tensor_under_copy_is_refused():
    instructions = _vanilla()
    at = _at(instructions, 7)
    instructions.insert(at, CopyOut(tensor=TensorId(1)))
    with pytest.raises(InvalidPlan, match="op 7 reads tensor 1, which is LEAVING"):
        verify(chain(), instructions, ())


def test_freeing_a_parameter_is_refused():
    with pytest.raises(InvalidPlan, match="frees the persistent tensor 0"):
        verify(chain(), [*_vanilla(), Free(tensor=TensorId(0))], ())


def test_freeing_what_a_later_op_reads_is_refused():
    instructions = _vanilla()
    instructions.insert(_at(instructions, 5), Free(tensor=HIDDEN))
    with pytest.raises(InvalidPlan, match="op 5 reads tensor 3, which is NOWHERE"):
        verify(chain(), instructions, ())


def test_an_iteration_that_ends_otherwise_than_it_starts_is_refused():
    instructions = [*_vanilla(), CopyOut(tensor=TensorId(0)), Await(tensor=TensorId(0))]
    said = r"tensor 0 .* is on the device when an iteration begins, but on the host when it ends"
    with pytest.raises(InvalidPlan, match=said):
        verify(chain(), instructions, ())


def test_an_activation_left_behind_is_refused():
    instructions = [step for step in _vanilla() if step != Free(tensor=HIDDEN)]
    said = r"tensor 3 .* is not released in the end: it is still on the device when the iteration ends"
    with pytest.raises(InvalidPlan, match=said):
        verify(chain(), instructions, ())


def test_an_op_that_never_runs_is_refused():
    instructions = [step for step in _vanilla() if step != Compute(op=OpId(9))]
    with pytest.raises(InvalidPlan, match=r"ops \[9\] never run"):
        verify(chain(), instructions, ())


def test_an_op_that_must_not_run_twice_is_refused():
    instructions = _vanilla()
    instructions.insert(_at(instructions, 9), Compute(op=OpId(7), recompute=True))
    with pytest.raises(InvalidPlan, match="runs op 7 again"):
        verify(chain(), instructions, ())


def test_recomputing_from_a_parameter_that_was_updated_since_is_refused():
    instructions = _vanilla()
    at = _at(instructions, 9)
    hidden_again = [Compute(op=OpId(1), recompute=True), Free(tensor=HIDDEN)]
    input_kept = [step for step in instructions[:at] if step != Free(tensor=TensorId(2))]
    instructions = [*input_kept, *hidden_again, *instructions[at:]]
    with pytest.raises(InvalidPlan, match="runs op 1 again, but tensor 0 has changed since"):
        verify(chain(), instructions, ())
    graph = chain()
    ops = [replace(op, unread=(TensorId(0),)) if op.id == 1 else op for op in graph.ops]
    shape_alone = StepGraph(tensors=graph.tensors, ops=tuple(ops))
    input_freed = [*instructions, Free(tensor=TensorId(2))]
    assert verify(shape_alone, input_freed, ()) >= verify(graph, _vanilla(), ())


def test_reading_a_value_older_than_the_last_one_is_refused():
    forward = Phase.FORWARD
    graph = graph_of(
        [(4, Role.INPUT), (4, Role.ACTIVATION), (4, Role.ACTIVATION), (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", forward, [], [0], False),
            ("both", forward, [0], [1, 2], True),
            ("relu_", forward, [2], [2], True),
            ("loss", forward, [1, 2], [3], True),
            ("tensile.report", Phase.OPTIMIZER, [0, 3], [], False),
        ],
    )
    instructions = list(lower(graph, plan_one(graph)).instructions)
    # Tensor 1 is made again, and tensor 2 with it, without relu_.
    again = [Free(tensor=TensorId(1)), Compute(op=OpId(1), recompute=True)]
    at = _at(instructions, 3)
    with pytest.raises(InvalidPlan, match="op 3 reads tensor 2 with a value that is not its last one"):
        verify(graph, [*instructions[:at], *again, *instructions[at:]], ())


def test_a_recomputation_counts_what_it_makes_twice():
    instructions = _vanilla()
    at = _at(instructions, 5)
    # Op 4 makes the output's gradient, which is there already: 20 bytes more while it runs again.
    output_kept = [step for step in instructions[:at] if step != Free(tensor=TensorId(4))]
    again = [Compute(op=OpId(4), recompute=True), Free(tensor=TensorId(4))]
    assert verify(chain(), [*output_kept, *again, *instructions[at:]], ()) == 291


def _overwritten(role: Role) -> StepGraph:
    """Return a step in which tensor 0 is written twice without being read between."""
    forward = Phase.FORWARD
    return graph_of(
        [(8, role), (4, Role.INPUT), (4, Role.ACTIVATION), (1, Role.OUTPUT)],
        [
            ("tensile.load_batch", forward, [], [1], False),
            ("layer", forward, [1], [2], True),
            ("copy_", forward, [1], [0], True),
            ("copy_", forward, [2], [0], True),
            ("loss", forward, [2], [3], True),
            ("tensile.report", Phase.OPTIMIZER, [3], [], False),
        ],
    )


def test_two_writes_in_another_order_are_refused_where_the_next_iteration_has_the_last_ones_value():
    graph = _overwritten(Role.BUFFER)
    vanilla = plan_one(graph)
    lower(graph, vanilla)
    order = tuple(OpId(op) for op in (0, 1, 3, 2, 4, 5))
    with pytest.raises(InvalidPlan, match=r"tensor 0 ends .* that op 2 writes, but in eager's order op 3"):
        lower(graph, replace(vanilla, order=order))


def test_two_writes_of_what_nobody_reads_may_change_places():
    graph = _overwritten(Role.ACTIVATION)
    vanilla = plan_one(graph)
    order = tuple(OpId(op) for op in (0, 1, 3, 2, 4, 5))
    # Released after the last of its writes.
    events = [replace(e, after_op=OpId(2)) if e.tensor == 0 else e for e in vanilla.events]
    assert lower(graph, replace(vanilla, order=order, events=tuple(events))).guaranteed_peak_nbytes == 16


@pytest.mark.parametrize("drawn", [False, True])
def test_random_numbers_that_are_drawn_in_another_order_are_refused(drawn):
    # Two masks, which do not depend on each other, and what is made of both.
    graph = graph_of(
        [(4, Role.ACTIVATION), (4, Role.ACTIVATION), (1, Role.OUTPUT)],
        [
            ("mask", Phase.FORWARD, [], [0], not drawn),
            ("mask", Phase.FORWARD, [], [1], not drawn),
            ("loss", Phase.FORWARD, [0, 1], [2], True),
            ("tensile.report", Phase.OPTIMIZER, [2], [], False),
        ],
    )
    swapped = replace(plan_one(graph), order=tuple(OpId(op) for op in (1, 0, 2, 3)))
    if drawn:
        with pytest.raises(InvalidPlan, match="op 1 draws random numbers before op 0 does, but in eager's"):
            lower(graph, swapped)
    else:
        assert lower(graph, swapped).guaranteed_peak_nbytes == 9
