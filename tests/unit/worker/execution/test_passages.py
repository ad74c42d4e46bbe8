"""Which instructions are taken down together."""

import dataclasses
from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.capture.step import Scalar
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut
from tensile_db.worker.execution.passages import Passage, is_reported_late, passages_of
from tests.late.runs import open_late
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once, tight_plan
from tests.steps.small_networks import training_of
from tests.steps.small_runs import swapping_program


def between(step, instructions):
    """Return what is done one by one."""
    passages = passages_of(step, instructions)
    inside = {index for passage in passages for index in range(passage.begin, passage.end)}
    return [each for index, each in enumerate(instructions) if index not in inside]


def steady_step():
    """Return the small step with a rate that stays."""
    step = s.small_step()
    calls = list(step.calls)
    calls[s.W2] = dataclasses.replace(calls[s.W2], kwargs={"alpha": 0.01})
    return dataclasses.replace(step, calls=tuple(calls))


def test_an_iteration_without_changing_numbers_is_one_passage_with_all_its_copies():
    instructions = swapping_program(steady_step()).instructions
    assert passages_of(steady_step(), instructions) == (Passage(0, len(instructions)),)


def test_a_copy_that_goes_on_across_a_changing_number_is_begun_and_awaited_one_by_one():
    step = s.small_step()
    alone = between(step, swapping_program(step).instructions)
    assert [each for each in alone if isinstance(each, CopyOut | CopyIn | Await)] == [
        CopyOut(tensor=s.M1_T),
        Await(tensor=s.M1_T),
    ]
    assert Compute(op=s.W2) in alone


def test_a_few_updates_between_changing_numbers_are_no_passage():
    step = s.small_step()
    calls = list(step.calls)
    for op in (s.M1, s.W1):
        calls[op] = dataclasses.replace(calls[op], kwargs={"alpha": Scalar(name="rate")})
    step = dataclasses.replace(step, calls=tuple(calls))
    instructions = s.plain_instructions(step)
    alone = [each.op for each in between(step, instructions) if isinstance(each, Compute)]
    # ADD1 is alone between two of them.
    assert alone == [s.M1, s.ADD1, s.W1, s.W2, s.REPORT]
    assert len(passages_of(step, instructions)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "most"), [("momentum", 1), ("sgd", 1), ("adam", 100)])
def test_a_training_without_bias_corrections_is_one_passage(optimizer, most):
    step, _ = capture_once(training_of("resnet", optimizer, 4))
    _, device = open_late("lazy")
    instructions = tight_plan(step, device, 0.6).program.instructions
    passages = passages_of(step, instructions)
    assert 1 <= len(passages) <= most
    device.close()


STEP = s.small_step()
KINDS = st.lists(st.sampled_from(["same", "differs", "copy"]), min_size=1, max_size=14)


@given(kinds=KINDS, lengths=st.lists(st.integers(1, 6), min_size=14, max_size=14))
def test_no_copy_crosses_the_end_of_a_passage(kinds, lengths):
    instructions, open_copies = [], []
    for kind, length in zip(kinds, lengths, strict=False):
        open_copies = [(tensor, left - 1) for tensor, left in open_copies]
        instructions += [Await(tensor=tensor) for tensor, left in open_copies if left == 0]
        open_copies = [(tensor, left) for tensor, left in open_copies if left > 0]
        match kind:
            case "copy":
                tensor = 100 + len(instructions)
                instructions.append(CopyOut(tensor=tensor))
                open_copies.append((tensor, length))
            case "differs":
                instructions.append(Compute(op=s.W2))
            case "same":
                instructions.append(Compute(op=s.GW1))
    instructions += [Await(tensor=tensor) for tensor, _ in open_copies]
    passages = passages_of(STEP, instructions)
    assert all(one.end <= two.begin for one, two in pairwise(passages))
    inside = {index for passage in passages for index in range(passage.begin, passage.end)}
    assert not any(instructions[index] == Compute(op=s.W2) for index in inside)
    for passage in passages:
        assert isinstance(passage, Passage)
        taken = instructions[passage.begin : passage.end]
        begun = [each.tensor for each in taken if isinstance(each, CopyOut)]
        awaited = [each.tensor for each in taken if isinstance(each, Await)]
        assert sorted(begun) == sorted(awaited)
        event("a copy within a passage" if begun else "no copy in a passage")
    apart = [each for place, each in enumerate(instructions) if place not in inside]
    event("a copy apart" if any(isinstance(each, CopyOut) for each in apart) else "no copy apart")


def test_what_is_written_after_the_report_cannot_be_told_at_the_end():
    step = s.small_step()
    instructions = s.plain_instructions(step)
    assert is_reported_late(step, instructions)
    assert not is_reported_late(step, [Compute(op=s.REPORT), *instructions])
