"""Who is away where: answered for many tensors at once as tensor by tensor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.residency import Residency, shortest_absence
from tensile_db.scheduler.analysis.stretches import Stretches
from tests.graphs.random_graphs import training_graphs


def test_a_stretch_is_half_open_and_can_be_moved_and_emptied():
    stretches = Stretches()
    stretches.put((TensorId(7), 0), 2, 4)
    stretches.put((TensorId(7), 5), 6, 9)
    stretches.put((TensorId(3), 1), 3, 5)

    def away():
        return [found.tolist() for found in stretches.covering(1, 2, 3, 4, 8)]

    assert away() == [[], [7], [7, 3], [3], [7]]
    stretches.put((TensorId(7), 0), 1, 2)
    stretches.put((TensorId(3), 1), 0, 0)
    assert away() == [[7], [], [], [], [7]]


def test_there_is_room_for_as_many_as_come():
    stretches = Stretches()
    for tensor in range(1000):
        stretches.put((TensorId(tensor), 0), tensor, tensor + 2)
    assert [found.tolist() for found in stretches.covering(0, 500)] == [[0], [499, 500]]


@pytest.mark.slow
@given(st.data())
def test_held_at_an_op_is_what_is_alive_and_in_no_absence_there(data):
    graph = data.draw(training_graphs())
    residency = Residency(graph, [1000] * len(graph.ops))
    ops = len(graph.ops)
    for tensor in data.draw(st.sets(st.sampled_from([tensor.id for tensor in graph.tensors]))):
        position = data.draw(st.integers(0, ops - 1))
        gap = residency.gap_at(tensor, position)
        if gap is not None:
            at = gap.unrolled(position)
            absence = shortest_absence(gap, at, data.draw(st.integers(at, gap.following - 1)))
            residency.add(absence)
            if data.draw(st.booleans()):
                residency.replace(absence, shortest_absence(gap, gap.previous + 1, gap.following - 1))
            elif data.draw(st.booleans()):
                residency.remove(absence)
    for position in range(ops):
        held = list(residency.held_at(position))
        assert sum(graph.tensors[tensor].nbytes for tensor in held) == (
            residency.footprint[position] - graph.ops[residency.table.order[position]].workspace_nbytes
        )
        assert held == sorted(held, key=lambda tensor: (-graph.tensors[tensor].nbytes, tensor))
        assert all(residency.absence_at(tensor, position) is None for tensor in held)
