"""Sources that send some rows and then nothing for a while, for which no other thread may have to wait."""

import threading

import pytest

from tensile_db.data.snapshot import read
from tensile_db.errors import JobCancelled
from tests.patience import wait_until

#: Behind the row at which `held` waits for a lock, and more bytes of rows than the server keeps back.
ROWS, HELD_AT, LOCK = 4000, 3000, 17
#: A lock that nobody gives away ends the statement instead of the test run.
HELD = f"""
    CREATE FUNCTION held(i int) RETURNS real LANGUAGE plpgsql AS $$
    BEGIN
        IF i = {HELD_AT} THEN
            SET LOCAL lock_timeout = '60s';
            PERFORM pg_advisory_xact_lock({LOCK});
        END IF;
        RETURN i;
    END $$;
    CREATE VIEW slow AS SELECT public.held(i) AS x, mod(i, 2) AS y FROM generate_series(1, {ROWS}) i;
    GRANT SELECT ON slow TO alice
"""


@pytest.fixture
def slow(site, source):
    site.execute(HELD)
    return source("slow")


@pytest.fixture
def held(site):
    """Return a connection that holds the lock, with a function that tells whether somebody waits for it."""
    with site.connect("postgres") as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
        yield holder, lambda: site.value(waits, LOCK)


def test_other_threads_go_on_while_a_source_sends_nothing(slow, held, connection, tmp_path):
    holder, is_waited_for = held
    ended = threading.Event()

    def give_away():
        wait_until(lambda: ended.is_set() or is_waited_for())
        holder.execute("SELECT pg_advisory_unlock(%s)", [LOCK])

    other = threading.Thread(target=give_away)
    other.start()
    try:
        _, rows = read(connection, slow, tmp_path / "rows")
    finally:
        ended.set()
        other.join()
    assert rows.values[0].tolist() == list(range(1, ROWS + 1))


def test_a_job_is_cancelled_while_its_source_sends_nothing(slow, held, connection, tmp_path):
    _, is_waited_for = held

    def check():
        if is_waited_for():
            raise JobCancelled("as asked")

    with pytest.raises(JobCancelled, match="as asked"):
        read(connection, slow, tmp_path / "rows", check=check)
