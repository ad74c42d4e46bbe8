"""What an allocator over one growing range holds, against one that keeps a map of bytes."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.program import Compute
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.growing_range import asked_for, ranges_nbytes
from tests.examples import examples
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.steps import small_step as s
from tests.steps.small_runs import swapping_program

pytestmark = pytest.mark.usefixtures("little_effort")

MIB = 2**20


def range_nbytes(graph, program):
    return sum(ranges_nbytes(asked_for(graph, program)))


class Map:
    """A range as a list of who holds each byte."""

    def __init__(self, page_nbytes):
        self.page_nbytes, self.bytes = page_nbytes, []

    def holes(self):
        found, begin = [], None
        for address, holder in enumerate([*self.bytes, "end"]):
            if holder is None and begin is None:
                begin = address
            if holder is not None and begin is not None:
                found.append((address - begin, begin))
                begin = None
        return found

    def take(self, holder, nbytes):
        fitting = [hole for hole in self.holes() if hole[0] >= nbytes]
        while not fitting:
            self.bytes += self.page_nbytes * [None]
            fitting = [hole for hole in self.holes() if hole[0] >= nbytes]
        # What can grow is taken last.
        inner = [hole for hole in fitting if sum(hole) < len(self.bytes)]
        _, address = min(inner or fitting)
        self.bytes[address : address + nbytes] = nbytes * [holder]

    def give(self, holder):
        self.bytes = [None if each == holder else each for each in self.bytes]


@examples(200)
@given(
    page_nbytes=st.sampled_from([1, 7, 20]),
    wishes=st.lists(st.tuples(st.integers(1, 30), st.booleans(), st.integers(0, 50)), max_size=40),
)
def test_holes_are_given_out_as_by_a_map_of_bytes(page_nbytes, wishes):
    got, want = growing_range._Range(page_nbytes), Map(page_nbytes)
    held = []
    for number, (nbytes, gives, which) in enumerate(wishes):
        holder = (number, 0)
        got.take(holder, nbytes)
        want.take(holder, nbytes)
        held.append(holder)
        if gives:
            given_up = held.pop(which % len(held))
            got.give(given_up)
            want.give(given_up)
        for address, size in got._held.values():
            assert len(set(want.bytes[address : address + size])) == 1
        assert got.nbytes == len(want.bytes)
    event("holes are left" if want.holes() else "no holes are left")


def twice_made(step):
    """H is made again where the backward pass reads it, though it is still there."""
    instructions = s.plain_instructions(step)
    at = instructions.index(Compute(op=s.GRELU))
    instructions[at:at] = [Compute(op=s.MM1, recompute=True), Compute(op=s.RELU, recompute=True)]
    return s.program(step, instructions)


@pytest.mark.parametrize("make", [s.plain_program, swapping_program, twice_made])
def test_nothing_is_held_twice_and_nothing_is_left_but_tensors_that_begin_on_the_host(make):
    step = s.small_step()
    program, holds = make(step), {}
    for takes, holder, nbytes in growing_range.asked_for(step.graph, program):
        assert (holder in holds) is not takes
        if takes:
            holds[holder] = nbytes
        else:
            assert holds.pop(holder) == nbytes
    assert holds == {}


@pytest.mark.slow
@examples(40)
@given(graph=training_graphs(5), machine=devices(), ease=st.sampled_from([0.0, 0.3, 1.0]), data=st.data())
def test_a_range_is_as_long_as_what_is_held_at_once_or_longer(graph, machine, ease, data):
    least, ample = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    spec = replace(machine, memory_nbytes=int(least + ease * (ample - least)))
    request = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    (plan,) = plan_jobs([request], spec)
    runs, program = planned_graph(graph, plan.plan), plan.program
    held = most = 0
    for takes, _, nbytes in growing_range.asked_for(runs, program):
        held += nbytes if takes else -nbytes
        most = max(most, held)
        assert held >= 0
    away = set(program.start_on_host)
    places = sum(t.nbytes for t in runs.tensors if t.persistent and t.id not in away)
    # Tensors that leave keep their places.
    assert most <= program.guaranteed_peak_nbytes <= most + places
    with pytest.MonkeyPatch.context() as patch:
        # No rounding, one range, pages of a byte.
        patch.setattr(growing_range, "_GRANULE_NBYTES", 1)
        patch.setattr(growing_range, "SMALL_NBYTES", 0)
        patch.setattr(growing_range, "PAGE_NBYTES", 1)
        hole_nbytes = range_nbytes(runs, program) - most
    assert hole_nbytes >= 0
    event("with holes" if hole_nbytes else "without holes")


def sized(graph, nbytes):
    """Return the graph with tensors of so many bytes each."""
    return replace(graph, tensors=tuple(replace(each, nbytes=nbytes) for each in graph.tensors))


@pytest.mark.parametrize("nbytes", [0, 1, 512])
def test_sizes_are_rounded_to_512_bytes(monkeypatch, nbytes):
    monkeypatch.setattr(growing_range, "_SMALL_PAGE_NBYTES", 1)
    step = s.small_step()
    graph, program = sized(step.graph, nbytes), s.plain_program(step)
    held = most = 0
    for takes, _, _ in growing_range.asked_for(graph, program):
        held += 1 if takes else -1
        most = max(most, held)
    assert range_nbytes(graph, program) == 512 * most
    assert range_nbytes(sized(graph, 513), program) == 1024 * most


def test_pages_are_whole_and_larger_for_large_tensors():
    step = s.small_step()
    program = s.plain_program(step)
    # All its tensors are small.
    assert range_nbytes(step.graph, program) == 2 * MIB
    # A few at once: as many pages of 2 MiB as half of them, or one page of 20 MiB.
    small_nbytes = range_nbytes(sized(step.graph, MIB), program)
    assert 2 * MIB < small_nbytes < 20 * MIB
    assert small_nbytes % (2 * MIB) == 0
    assert range_nbytes(sized(step.graph, MIB + 1), program) == 20 * MIB


def test_what_is_made_again_while_it_is_there_is_held_twice_for_a_moment():
    step = s.small_step()
    first, second = (s.H, 0), (s.H, 1)
    walked = [
        each for each in growing_range.asked_for(step.graph, twice_made(step)) if each[1] in (first, second)
    ]
    nbytes = 4 * s.ROWS * s.HIDDEN
    assert walked == [
        (True, first, nbytes),
        (True, second, nbytes),
        (False, first, nbytes),
        (False, second, nbytes),
    ]
