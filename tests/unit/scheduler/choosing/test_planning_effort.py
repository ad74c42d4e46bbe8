"""What planning looks at: no more tensors than may matter, or deep networks take minutes."""

import pytest

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.passive import evict_to_budget
from tensile_db.scheduler.choosing.recompute import Recomputations
from tensile_db.scheduler.machines import machine
from tests.steps.small_step import small_step

#: Parameters of 10 bytes, each read by an op of its own.
MANY = 2000


@pytest.fixture
def looked_at(monkeypatch):
    """The tensors whose gaps were asked for."""
    asked = []
    gap_at = Residency.gap_at

    def recording(residency, tensor, position):
        asked.append(tensor)
        return gap_at(residency, tensor, position)

    monkeypatch.setattr(Residency, "gap_at", recording)
    return asked


def _many_parameters():
    tensors = [
        Tensor(
            id=TensorId(number),
            nbytes=10,
            dtype="uint8",
            shape=(10,),
            role=Role.PARAMETER,
            persistent=True,
            name=f"parameter/{number}",
        )
        for number in range(MANY)
    ]
    ops = [
        Op(
            id=OpId(number),
            target="read",
            phase=Phase.FORWARD,
            reads=(TensorId(number),),
            writes=(),
            workspace_nbytes=0,
            flops=0,
            moved_nbytes=0,
            recomputable=True,
        )
        for number in range(MANY)
    ]
    return StepGraph(tensors=tuple(tensors), ops=tuple(ops))


def test_recomputation_is_not_looked_for_among_persistent_tensors(looked_at):
    graph = small_step().graph
    Recomputations(Residency(graph, [1000] * len(graph.ops))).find()
    assert looked_at
    assert not any(graph.tensors[tensor].persistent for tensor in looked_at)


def test_where_a_few_hundred_tensors_must_leave_not_all_thousands_are_looked_at(looked_at):
    graph = _many_parameters()
    residency = Residency(graph, [1_000_000] * MANY)
    assert evict_to_budget(residency, Link(machine("sim:a6000")), 10 * (MANY - 200))
    first = looked_at[:640]
    assert len(set(first)) == 640
    # Of the first op; each later stretch of ops looks at the most promising ones again, and at as few.
    stretches = -(-MANY // 17)
    assert len(looked_at) <= 640 * stretches
