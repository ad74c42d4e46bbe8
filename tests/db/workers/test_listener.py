"""What wakes the controller, and how soon it stops."""

import queue
import time

import psycopg
import pytest

from tensile_db.worker.listener import Listener
from tests.patience import PATIENCE_S

NEVER_S = 3600.0


@pytest.fixture
def woken(database):
    """Return a queue that grows at each call, of a listener that polls as good as never."""
    calls = queue.SimpleQueue()
    listener = Listener(dsn=database.worker, poll_s=NEVER_S, wake=lambda: calls.put(None))
    listener.start()
    calls.get(timeout=PATIENCE_S)
    yield calls
    begin_s = time.monotonic()
    listener.stop()
    assert time.monotonic() - begin_s < NEVER_S / 100


def test_a_notification_wakes_it(database, woken):
    database.execute("NOTIFY tensile_jobs")
    woken.get(timeout=PATIENCE_S)
    database.execute("NOTIFY others")
    with pytest.raises(queue.Empty):
        woken.get(timeout=0.5)


def test_a_lost_connection_is_made_anew_and_then_looked_after(database, woken):
    def listening():
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tensile_db listener'"
        return {row["pid"] for row in database.execute(query)}

    (lost,) = listening()
    database.execute("SELECT pg_terminate_backend(%s)", lost)
    while not listening() - {lost}:
        woken.get(timeout=PATIENCE_S)
    while not woken.empty():
        woken.get()
    database.execute("NOTIFY tensile_jobs")
    woken.get(timeout=PATIENCE_S)


def test_without_notifications_it_wakes_after_the_polls_interval(database):
    calls = queue.SimpleQueue()
    listener = Listener(dsn=database.worker, poll_s=0.1, wake=lambda: calls.put(None))
    listener.start()
    for _ in range(3):
        calls.get(timeout=PATIENCE_S)
    listener.stop()


def test_a_timeout_of_idle_sessions_ends_no_listener(database):
    name = psycopg.conninfo.conninfo_to_dict(database.admin)["dbname"]
    database.execute(f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '100ms'")
    calls = queue.SimpleQueue()
    listener = Listener(dsn=database.worker, poll_s=NEVER_S, wake=lambda: calls.put(None))
    listener.start()
    try:
        calls.get(timeout=PATIENCE_S)
        # It looks anew whenever it has connected.
        with pytest.raises(queue.Empty):
            calls.get(timeout=1)
    finally:
        listener.stop()
