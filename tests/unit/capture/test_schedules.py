"""Schedules of learning rates: what they are, and which requests have none."""

import pytest
import torch

from tensile_db.capture import schedules
from tensile_db.capture.schedules import LearningRateSchedule, schedule_of
from tensile_db.errors import UnknownName

RATE = 0.1


def rates(scheduler):
    """Return the learning rates of 20 updates as one of torch.optim has them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    of_torch = scheduler(optimizer)
    found = []
    for _ in range(20):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        of_torch.step()
    return found


def ours(name, warmup_updates=0):
    schedule = LearningRateSchedule(name=name, warmup_updates=warmup_updates, updates=20)
    return [RATE * schedule(update) for update in range(1, 21)]


def test_learning_rates_are_those_of_torch_optim_up_to_rounding():
    of = torch.optim.lr_scheduler
    assert ours("cosine") == pytest.approx(rates(lambda each: of.CosineAnnealingLR(each, T_max=20)))
    falling = rates(lambda each: of.LinearLR(each, start_factor=1.0, end_factor=0.0, total_iters=20))
    assert ours("linear") == pytest.approx(falling)
    growing = rates(lambda each: of.LinearLR(each, start_factor=0.2, end_factor=1.0, total_iters=4))
    assert ours("constant", 5) == pytest.approx(growing)

    def warmed_up(optimizer):
        first = of.LinearLR(optimizer, start_factor=0.2, end_factor=1.0, total_iters=4)
        then = of.CosineAnnealingLR(optimizer, T_max=15)
        return of.SequentialLR(optimizer, [first, then], milestones=[5])

    assert ours("cosine", 5) == pytest.approx(rates(warmed_up))


@pytest.mark.parametrize("name", schedules._SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1, 7, 20])
def test_each_update_has_some_of_the_rate_and_after_the_warm_up_it_never_grows(name, warmup):
    found = ours(name, warmup)
    assert all(0 < rate <= RATE for rate in found)
    assert sorted(found[:warmup]) == found[:warmup]
    assert found[max(warmup, 1) - 1] == RATE
    assert sorted(found[warmup:], reverse=True) == found[warmup:]


def test_warm_ups_are_rounded_to_whole_updates():
    found = schedule_of("linear", 0.3, epochs=2, updates_per_epoch=5)
    assert found == LearningRateSchedule(name="linear", warmup_updates=2, updates=10)
    assert schedule_of("constant", 2, epochs=2, updates_per_epoch=5) == LearningRateSchedule(
        name="constant", warmup_updates=10, updates=10
    )


@pytest.mark.parametrize("warmup", [0, 0.01, 0.2])
def test_a_rate_that_stays_has_no_schedule(warmup):
    assert schedule_of("constant", warmup, epochs=2, updates_per_epoch=5) is None


def test_an_unknown_schedule_is_refused():
    with pytest.raises(UnknownName, match='unknown learning rate schedule "cosin"') as raised:
        schedule_of("cosin", 0, epochs=2, updates_per_epoch=5)
    assert raised.value.hint == 'Did you mean "cosine"?'
