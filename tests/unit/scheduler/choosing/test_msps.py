"""Algorithm 2 of Capuchin, on the lineages that its section 4.5 tells of."""

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.choosing.msps import Lineage, Lineages


def _lineage(tensor: int, source: int, *, nbytes: int = 100, time_ns: int = 10, back: int = 50) -> Lineage:
    gap = Gap(tensor=TensorId(tensor), previous=tensor, following=back, ops=100)
    return Lineage(gap=gap, nbytes=nbytes, sources={TensorId(source)}, ops=(), time_ns=time_ns)


def _chain_of_four() -> Lineages:
    """Return T1 -> T2 -> T3 -> T4, of which T1, T2 and T4 are candidates; the last is needed first."""
    return Lineages(
        [
            _lineage(1, 0, time_ns=10, back=59),
            _lineage(2, 1, time_ns=20, back=58),
            _lineage(4, 2, time_ns=70, back=56),
        ]
    )


def test_the_best_candidate_saves_most_bytes_per_time_and_is_the_first_of_equals():
    assert _chain_of_four().find_best().gap.tensor == 1
    assert Lineages([_lineage(1, 0), _lineage(2, 0)]).find_best().gap.tensor == 1
    assert Lineages([]).find_best() is None


def test_what_is_made_from_the_chosen_one_begins_at_its_sources_and_takes_its_time_too():
    lineages = _chain_of_four()
    lineages.choose(TensorId(2))
    four = lineages.candidates[TensorId(4)]
    assert (four.sources, four.time_ns, four.repeated_ns) == ({1}, 90, 0)


def test_what_the_chosen_one_is_made_from_would_run_once_more():
    lineages = _chain_of_four()
    lineages.choose(TensorId(2))
    one = lineages.candidates[TensorId(1)]
    assert (one.time_ns, one.repeated_ns, one.overhead_ns) == (10, 10, 20)
    assert one.msps == 5.0


def test_a_source_of_several_chosen_ones_would_run_again_for_each():
    lineages = _chain_of_four()
    lineages.choose(TensorId(4))
    lineages.choose(TensorId(2))
    # T4 was made from T2 and is now made from T1, like T2.
    assert lineages.chosen[TensorId(4)].sources == {1}
    assert lineages.candidates[TensorId(1)].repeated_ns == 2 * 10


def test_a_source_that_is_back_when_it_is_needed_stays_a_source():
    early = _lineage(1, 0, back=40)
    late = _lineage(2, 1, back=50)
    lineages = Lineages([early, late])
    lineages.choose(TensorId(1))
    assert (late.sources, late.time_ns) == ({1}, 10)
