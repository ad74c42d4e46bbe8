import pytest

from tensile_db.errors import DeviceOutOfMemory
from tensile_db.worker.devices.accounts import DeviceMemory
from tests.at_once import at_once


def test_a_charge_beyond_the_budget_is_refused_and_takes_nothing():
    memory = DeviceMemory(1000)
    account = memory.open_account(1, 300)
    account.charge(250)
    with pytest.raises(DeviceOutOfMemory) as refusal:
        account.charge(51)
    assert (refusal.value.wanted_nbytes, refusal.value.used_nbytes, refusal.value.capacity_nbytes) == (
        51,
        250,
        300,
    )
    assert (account.used_nbytes, account.peak_nbytes, memory.used_nbytes) == (250, 250, 250)
    account.charge(50)
    assert account.used_nbytes == 300


def test_a_charge_beyond_the_capacity_is_refused_though_the_budget_allows_it():
    memory = DeviceMemory(1000)
    first, second = memory.open_account(1, 800), memory.open_account(2, 800)
    first.charge(600)
    with pytest.raises(DeviceOutOfMemory) as refusal:
        second.charge(401)
    assert (refusal.value.used_nbytes, refusal.value.capacity_nbytes) == (600, 1000)
    assert (second.used_nbytes, memory.used_nbytes) == (0, 600)


def test_the_peak_is_the_most_held_since_it_was_reset():
    memory = DeviceMemory(1000)
    account = memory.open_account(1, 1000)
    account.charge(700)
    account.release(500)
    account.charge(100)
    assert (account.peak_nbytes, memory.peak_nbytes) == (700, 700)
    account.reset_peak()
    account.charge(50)
    assert (account.peak_nbytes, memory.peak_nbytes) == (350, 700)


def test_an_account_closes_only_when_empty_and_its_job_may_come_again():
    memory = DeviceMemory(1000)
    account = memory.open_account(1, 1000)
    account.charge(10)
    with pytest.raises(AssertionError, match="leaves 10 bytes behind"):
        account.close()
    account.release(10)
    account.close()
    memory.open_account(1, 1000).close()


def test_a_budget_cannot_fall_below_what_is_held():
    account = DeviceMemory(1000).open_account(1, 500)
    account.charge(300)
    with pytest.raises(AssertionError, match="holds more than its new budget"):
        account.set_budget(299)
    account.set_budget(300)
    assert account.budget_nbytes == 300


def test_threads_together_never_exceed_the_capacity():
    memory = DeviceMemory(100)
    refused = []

    def churn(job):
        account = memory.open_account(job, 60)
        for _ in range(2000):
            try:
                account.charge(35)
            except DeviceOutOfMemory:
                refused.append(job)
            else:
                memory.validate()
                account.release(35)
        account.close()

    at_once(churn, range(4))
    memory.validate()
    assert memory.used_nbytes == 0
    assert memory.peak_nbytes in (35, 70)
