"""Changes to what is away, kept or undone."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tests.examples import examples
from tests.graphs.random_graphs import latencies_for, training_graphs


@given(st.data())
@examples(100)
def test_changes_that_are_undone_leave_nothing_and_those_that_are_kept_stay(data):
    graph = data.draw(training_graphs())
    residency = Residency(graph, data.draw(latencies_for(graph)))
    changes = Changes(residency)
    for keeps in (True, False):
        before = _state_of(residency)
        for _ in range(data.draw(st.integers(0, 5))):
            _change(changes, data)
        changed = _state_of(residency)
        if keeps:
            changes.keep()
        event("changed" if changed != before else "unchanged")
        changes.undo()
        assert _state_of(residency) == (changed if keeps else before)


def _state_of(residency):
    absences = {(a.tensor, a.gap.previous): a for held in residency.absences.values() for a in held}
    return absences, residency.footprint.tolist()


def _change(changes, data):
    residency = changes.residency
    position = data.draw(st.integers(0, len(residency.footprint) - 1))
    away = [a for held in residency.absences.values() for a in held]
    gaps = [residency.gap_at(tensor, position) for tensor in residency.held_at(position)]
    free = [gap for gap in gaps if gap is not None and residency.absence_in(gap) is None]
    kind = data.draw(st.sampled_from(["add"] * bool(free) + ["replace", "remove"] * bool(away) + ["nothing"]))
    if kind == "add":
        gap = data.draw(st.sampled_from(free))
        begin = gap.unrolled(position)
        changes.add(Absence(gap=gap, begin=min(begin, gap.ops), end=begin + 1, out_position=gap.previous))
    elif kind == "replace":
        old = data.draw(st.sampled_from(away))
        changes.replace(old, replace(old, end=data.draw(st.integers(old.end, old.gap.following))))
    elif kind == "remove":
        changes.remove(data.draw(st.sampled_from(away)))
