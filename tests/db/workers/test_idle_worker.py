"""What a worker costs while it has nothing to do."""

import time

from sqlalchemy import event

from tests.fixtures.claims import take
from tests.processor_time import processor_time_s


def test_a_worker_with_a_paused_job_uses_no_processor_time(database, start_worker):
    start_worker(poll_s=2.0)
    job = database.submit("points", epochs=100_000)
    database.wait_until(job, lambda row: row["iteration"])
    database.ask(job, pause_requested=True)
    database.wait_until(job, lambda row: row["state"] == "paused")
    before = processor_time_s()
    time.sleep(2)
    # A thread that turns round and round would use far more than half of these two seconds.
    used_s = {name: after_s - before.get(name, 0.0) for name, after_s in processor_time_s().items()}
    assert {"tensile-heartbeat", "tensile-listener"} <= used_s.keys()
    assert max(used_s.values()) < 0.5


def test_a_look_at_an_empty_queue_asks_about_no_job(join, engine):
    claims, asked = join(), []
    event.listen(engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))
    assert take(claims) == []
    # Who is alive, what is too large for everybody, what is to be let go, and what there is to claim.
    assert len(asked) == 4
