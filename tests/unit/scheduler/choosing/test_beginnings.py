"""What planning begins with is the same, whether it is found anew or known from within another budget."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.analysis.once import forget_all
from tensile_db.scheduler.choosing import beginnings
from tensile_db.scheduler.choosing.beginnings import Beginnings
from tensile_db.scheduler.choosing.ways import HOLDING_WAY, OTHER_WAYS, TIGHT_WAY, USUAL_WAY
from tensile_db.scheduler.policies import vanilla
from tests.examples import examples
from tests.graphs.dense_block import dense_block
from tests.graphs.hand_made import device_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs

#: However soon a tensor is used again, and so there is much to choose from.
AT_ONCE = [replace(way, reach=0.0) for way in (USUAL_WAY, HOLDING_WAY, TIGHT_WAY)]
WAYS = (USUAL_WAY, HOLDING_WAY, *OTHER_WAYS, *AT_ONCE)

#: So slow a link that whatever can be made again is worth it.
SLOW = device_of(10**6, 10**4)


def begun(graph, latencies_ns, device, way, *, budget_nbytes, least_nbytes):
    """Return all that planning begins with."""
    order = tuple(op.id for op in graph.ops)
    made = Beginnings(graph, latencies_ns, device, budget_nbytes=budget_nbytes, least_nbytes=least_nbytes)
    residency, candidates = made.begin(order, way)
    held = dict(residency.held_until)
    return dict(candidates), residency.needed, residency.pinned, held, residency.footprint.tolist()


@given(st.data())
@examples(150)
def test_what_is_known_is_what_would_be_found(data):
    graph = data.draw(st.one_of(training_graphs(), st.builds(dense_block, st.integers(2, 6))))
    device = data.draw(st.one_of(devices(costly_copies=True), st.just(SLOW)))
    latencies_ns = data.draw(latencies_for(graph))
    asked = st.fixed_dictionaries(
        {
            "budget_nbytes": st.integers(1, 2 * vanilla.peak_nbytes(graph)),
            "least_nbytes": st.sampled_from([1, *(tensor.nbytes for tensor in graph.tensors)]),
        }
    )
    several = data.draw(st.lists(st.tuples(st.sampled_from(WAYS), asked), min_size=2, max_size=8))
    forget_all()
    known = [begun(graph, latencies_ns, device, way, **arguments) for way, arguments in several]
    for (way, arguments), each in zip(several, known, strict=True):
        forget_all()
        assert begun(graph, latencies_ns, device, way, **arguments) == each
    event(f"{max(len(each[0]) for each in known)} candidates at most")


def test_a_budget_that_makes_no_difference_is_not_looked_at_again(monkeypatch):
    looked = []
    find = beginnings.find_candidates
    monkeypatch.setattr(
        beginnings, "find_candidates", lambda *args, **kwargs: looked.append(1) or find(*args, **kwargs)
    )
    graph, way = dense_block(6), AT_ONCE[1]
    peak_nbytes, latencies_ns = vanilla.peak_nbytes(graph), [1000] * len(graph.ops)
    (largest, *_) = sorted({tensor.nbytes for tensor in graph.tensors}, reverse=True)

    def look(budget_nbytes, least_nbytes=1, times=1):
        slower = [times * ns for ns in latencies_ns]
        begun(graph, slower, SLOW, way, budget_nbytes=budget_nbytes, least_nbytes=least_nbytes)
        return len(looked)

    assert look(2 * peak_nbytes) == 1
    assert begun(graph, latencies_ns, SLOW, way, budget_nbytes=peak_nbytes, least_nbytes=1)[0]
    assert look(3 * peak_nbytes) == 1
    # Within one byte nothing can be made again.
    assert look(1) == 2
    assert look(3 * peak_nbytes) == 2
    assert look(3 * peak_nbytes, least_nbytes=largest + 1) == 3
    assert look(3 * peak_nbytes, times=2) == 4
