"""What is made again of tensors that nothing else needs any more: worked by hand, and below plans."""

from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.errors import TensileError
from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices

#: Left out of `make check`.
pytestmark = pytest.mark.slow

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
#: Copies take so long that none are worth it: a byte takes a millisecond.
SLOW = device_of(10**6, 1000)


def _copied_of(source_nbytes: int, *, recomputable: bool):
    """Return a step that holds 1,000 bytes, made of a tensor that is let go, over an op which writes 1,500.

    Ops: make the source, make the tensor of it, the large one, use the tensor.
    """
    activation = Role.ACTIVATION
    sizes = [source_nbytes, 1000, 1500, 0, 0]
    return graph_of(
        [(nbytes, activation) for nbytes in sizes],
        [
            ("source", FORWARD, [], [0], recomputable),
            ("tensor", FORWARD, [0], [1, 3], True),
            ("large", FORWARD, [3], [2, 4], False),
            ("use", BACKWARD, [1, 4], [], False),
        ],
    )


@pytest.mark.parametrize(
    ("source_nbytes", "recomputable", "budget_nbytes", "want_ns"),
    [
        # The source is made again, too: 70 and 10 ns.
        (1000, True, 2000, 190 + 80),
        # It is held over the large op instead.
        (100, True, 2000, 190 + 10),
        (100, False, 2000, 190 + 10),
        # There is just room to hold it, and just none.
        (500, True, 2000, 190 + 10),
        (501, True, 2000, 190 + 80),
    ],
)
def test_worked_by_hand(source_nbytes, recomputable, budget_nbytes, want_ns):
    graph = _copied_of(source_nbytes, recomputable=recomputable)
    assert lower_bound_time_ns(graph, [70, 10, 100, 10], SLOW, budget_nbytes) == want_ns


@st.composite
def concatenations(draw):
    """Draw a step of a dense block: each layer reads all features so far, put together, and makes one more.

    Returns it with its latencies.  Features are let go of once they were put together for the last time.
    """
    layers = draw(st.integers(2, 5))
    rows, ops, latencies_ns = [], [], []

    def tensor(nbytes: int, role: Role = Role.ACTIVATION) -> int:
        rows.append((nbytes, role))
        return len(rows) - 1

    def op(name: str, phase: Phase, reads: list[int], writes: list[int], *, recomputable: bool, most_ns: int):
        ops.append((name, phase, reads, writes, recomputable))
        latencies_ns.append(draw(st.integers(1, most_ns)))

    size = st.integers(10, 60)
    features = [tensor(draw(size), Role.INPUT)]
    op("tensile.load_batch", FORWARD, [], features[:1], recomputable=False, most_ns=100)
    together = []
    for _ in range(layers):
        together.append(tensor(sum(rows[feature][0] for feature in features)))
        op("cat", FORWARD, list(features), [together[-1]], recomputable=True, most_ns=50)
        features.append(tensor(draw(size)))
        recomputable = draw(st.booleans())
        op("layer", FORWARD, [together[-1]], [features[-1]], recomputable=recomputable, most_ns=3000)
    gradient = tensor(rows[features[-1]][0])
    op("loss_backward", BACKWARD, [features[-1]], [gradient], recomputable=False, most_ns=100)
    for read in reversed(together):
        below = tensor(draw(size))
        op("layer_backward", BACKWARD, [read, gradient], [below], recomputable=False, most_ns=3000)
        gradient = below
    assert all(one[3] != two[3] for one, two in pairwise(ops))
    return graph_of(rows, ops), latencies_ns


@given(st.data())
@examples(60)
def test_no_plan_undercuts_it(data):
    (graph, latencies_ns), device = data.draw(concatenations()), data.draw(devices())
    limit = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    policy = data.draw(st.sampled_from(["auto", "checkpoint", "superneurons_memory", "capuchin", "tensile"]))
    job = JobRequest(
        job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy, memory_limit_nbytes=limit
    )
    try:
        (made,) = plan_jobs([job], device)
    except TensileError:
        event("has no plan")
        return
    event("runs ops again or waits" if made.prediction.time_ns > sum(latencies_ns) else "takes no longer")
    bound_ns = lower_bound_time_ns(graph, latencies_ns, device, made.prediction.peak_nbytes)
    event("is bounded by more than its ops" if bound_ns > sum(latencies_ns) else "is bounded by its ops")
    assert bound_ns <= made.prediction.time_ns
