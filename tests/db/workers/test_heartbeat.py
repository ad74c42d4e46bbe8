"""What a worker's heartbeat writes, and when it does not."""

import time

import pytest

from tensile_db.catalog import workers
from tensile_db.worker import heartbeat
from tensile_db.worker.messages import JobId
from tests.patience import wait_until
from tests.played.fake_device import FakeDevice


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def jobs_held():
    return {}


@pytest.fixture
def beating(engine, device, jobs_held, monkeypatch):
    """A worker's heartbeat whose next beat is hours away, with looks at the device every 50 ms."""
    monkeypatch.setattr(heartbeat, "_DEVICE_EVERY_S", 0.05)
    with engine.begin() as conn:
        worker = workers.register(conn, host="here", pid=1, version="0", device=device.spec)
    beating = heartbeat.Heartbeat(
        engine=engine,
        worker=worker,
        device=device,
        lease_s=1e5,
        attempts=lambda: dict(jobs_held),
        shared_nbytes=lambda: 900 * len(jobs_held),
        post=lambda event: None,
    )
    beating.start()
    yield beating
    beating.stop()


def row(database):
    (found,) = database.execute("SELECT used_nbytes, peak_nbytes, updated_at FROM tensile.devices")
    return found


def wait_for(database, used_nbytes):
    def found():
        now = row(database)
        return now if now["used_nbytes"] == used_nbytes else None

    return wait_until(found, lambda: row(database))


def test_the_devices_use_is_told_between_beats_while_jobs_run(database, device, jobs_held, beating):
    account = device.memory.open_account(JobId(1), 1000)
    jobs_held[1] = 1
    account.charge(700)
    wait_for(database, 700)
    (told,) = database.execute("SELECT shared_nbytes, others_nbytes FROM tensile.devices")
    assert told == {"shared_nbytes": 900, "others_nbytes": None}
    device.held_by_others_nbytes = 50
    account.release(300)
    assert wait_for(database, 400)["peak_nbytes"] == 700
    (told,) = database.execute("SELECT others_nbytes FROM tensile.devices")
    assert told == {"others_nbytes": 50}
    account.release(400)
    account.close()
    jobs_held.clear()
    wait_for(database, 0)


def test_an_idle_worker_writes_nothing_between_beats(database, beating):
    wait_for(database, 0)
    before = row(database)
    time.sleep(0.5)
    assert row(database) == before


def test_the_last_beat_tells_that_the_device_is_free(database, device, jobs_held, beating):
    account = device.memory.open_account(JobId(1), 1000)
    account.charge(700)
    wait_for(database, 700)
    account.release(700)
    account.close()
    beating.stop()
    assert row(database)["used_nbytes"] == 0


def test_a_lost_connection_is_replaced(database, device, jobs_held, beating, engine):
    wait_for(database, 0)
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test'")
    account = device.memory.open_account(JobId(1), 1000)
    account.charge(5)
    wait_for(database, 5)
    account.release(5)
    account.close()
