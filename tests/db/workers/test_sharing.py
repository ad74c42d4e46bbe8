"""Jobs beside one another on a real worker: waiting, leaving, being lost."""

import pytest

from tests.jobs import picture_jobs
from tests.jobs.picture_jobs import NETWORK, cancel, is_training


@pytest.fixture
def vanilla_nbytes(database, start_worker):
    """What the network needs without any planning."""
    return picture_jobs.vanilla_nbytes(database, start_worker)


def test_jobs_take_turns_in_memory_that_is_enough_for_one(database, start_worker, vanilla_nbytes):
    """Neither plans nor swaps within an iteration: the state leaves with the turn, where it must."""
    start_worker(memory_nbytes=int(1.05 * vanilla_nbytes))
    first = database.submit("pictures", policy="vanilla", epochs=10**6, **NETWORK)
    database.wait_until(first, is_training)
    others = [database.submit("pictures", policy="vanilla", epochs=2, **NETWORK) for _ in range(2)]
    rows = [database.wait(job) for job in others]
    assert [(row["state"], row["error_message"]) for row in rows] == [("succeeded", None)] * 2
    assert database.weights(others[0]) == database.weights(others[1])
    assert max(row["measured_peak_nbytes"] for row in rows) == vanilla_nbytes
    assert cancel(database, first) == ["cancelled"]
    alone = database.submit("pictures", policy="vanilla", epochs=2, **NETWORK)
    database.wait(alone)
    assert database.weights(alone) == database.weights(others[0])


def test_under_fifo_a_job_waits_for_the_end_of_the_one_before_and_says_so(database, start_worker):
    start_worker(sharing="fifo")
    first = database.submit("pictures", epochs=10**6, **NETWORK)
    database.wait_until(first, is_training)
    second = database.submit("pictures", epochs=1, **NETWORK)
    row = database.wait_until(second, lambda row: row["state"] == "waiting")
    assert row["wait_reason"] == f"waits for the end of job {first}: this worker runs one job at a time"
    assert cancel(database, first) == ["cancelled"]
    row = database.wait(second)
    assert (row["state"], row["wait_reason"]) == ("succeeded", None)


def test_a_waiting_job_that_is_given_a_higher_priority_runs_first(database, start_worker):
    start_worker(sharing="fifo")
    first = database.submit("pictures", policy="vanilla", epochs=10**6, **NETWORK)
    database.wait_until(first, is_training)
    second, third = (database.submit("pictures", policy="vanilla", epochs=10**6, **NETWORK) for _ in range(2))
    behind = "waits behind job {}, which is first in line"
    database.wait_until(third, lambda row: row["wait_reason"] == behind.format(second))
    database.execute("UPDATE tensile.jobs SET priority = 1 WHERE id = %s", third)
    database.wait_until(second, lambda row: row["wait_reason"] == behind.format(third))
    assert cancel(database, first) == ["cancelled"]
    database.wait_until(third, is_training)
    assert database.job(second)["state"] == "waiting"
    assert cancel(database, second, third) == ["cancelled", "cancelled"]


def test_the_others_are_planned_again_after_an_arrival_and_at_a_departure(
    database, start_worker, vanilla_nbytes
):
    start_worker(memory_nbytes=int(1.1 * vanilla_nbytes))
    first = database.submit("pictures", epochs=10**6, **NETWORK)
    database.wait_until(first, is_training)
    second = database.submit("pictures", epochs=10**6, **NETWORK)
    query = "SELECT reason FROM tensile.plans WHERE job_id = %s ORDER BY version"

    def has_plan(*reasons):
        return lambda row: any(plan["reason"] in reasons for plan in database.execute(query, row["id"]))

    database.wait_until(second, is_training)
    # For the arrival itself where it left nothing else; or afterwards, when lanes are chosen for both with
    # care, which a drift of the newcomer's predicted latencies leads to, too.
    database.wait_until(first, has_plan("arrival", "improvement", "drift"))
    assert cancel(database, second) == ["cancelled"]
    database.wait_until(first, has_plan("departure"))
    assert cancel(database, first) == ["cancelled"]
    plans = database.execute(
        "SELECT reason, guaranteed_peak_nbytes AS nbytes FROM tensile.plans WHERE job_id = %s"
        " ORDER BY version",
        first,
    )
    reasons = [plan["reason"] for plan in plans]
    first_plan, last_plan = plans[0], plans[reasons.index("departure")]
    assert reasons[0] == "cold_start"
    # It does with less, or, where copies take long at the moment, its state leaves with its turns instead.
    assert plans[1]["nbytes"] <= first_plan["nbytes"] == last_plan["nbytes"]
    # Also of plans that were taken up in the midst of an epoch.
    over = "SELECT * FROM tensile.plan_summary WHERE measured_peak_nbytes > guaranteed_peak_nbytes"
    assert database.execute(over) == []


@pytest.mark.parametrize(
    ("sharing", "admitted", "detail"),
    [
        ("fair", "yes", "beside 1 running job, taking turns with 1 of them."),
        pytest.param("pack", "yes", "beside 1 running job, at the same time.", marks=pytest.mark.thorough),
        ("fifo", "no", "It would wait for its turn: this worker runs one job at a time."),
    ],
)
def test_an_explanation_says_how_the_job_would_share_the_device(
    database, start_worker, sharing, admitted, detail
):
    start_worker(sharing=sharing)
    running = database.submit("pictures", policy="vanilla", epochs=10**6, **NETWORK)
    database.wait_until(running, is_training)
    asked = database.submit("pictures", kind="explain", policy="vanilla", **NETWORK)
    said = {row["property"]: row for row in database.wait(asked)["result"]["rows"]}
    assert (said["fits"]["value"], said["admitted_now"]["value"]) == ("yes", admitted)
    assert said["admitted_now"]["detail"].endswith(detail)
    cancel(database, running)


def test_a_worker_drops_a_job_that_another_one_has_taken_over(database, start_worker):
    start_worker()
    lost = database.submit("points", epochs=10**6)
    database.wait_until(lost, is_training)
    database.execute(
        "UPDATE tensile.jobs SET attempt = attempt + 1, heartbeat_at = now() + interval '1 hour'"
        " WHERE id = %s",
        lost,
    )
    before = database.job(lost)
    other = database.submit("points", epochs=1)
    assert database.wait(other)["state"] == "succeeded"
    after = database.job(lost)
    assert (after["state"], after["attempt"]) == ("running", 2)
    assert after["iteration"] - before["iteration"] < 10**4
    (device,) = database.execute("SELECT count(*) AS n FROM tensile.devices")
    assert device["n"] == 1


def test_a_job_whose_rows_changed_after_its_worker_was_lost_starts_anew(database, start_worker, tmp_path):
    training = {"epochs": 80, "options": {"checkpoint_iterations": 20}}
    first = start_worker()
    job = database.submit("points", **training)
    database.wait_until(job, lambda row: (row["iteration"] or 0) > 60)
    first.stop()
    database.wait_until(job, lambda row: row["state"] == "queued")
    # On another machine there is no cache.
    database.execute("DELETE FROM points WHERE id > 90")
    for folder in tmp_path.glob("database-*/job-*/rows"):
        folder.rename(folder.with_name("elsewhere"))
    start_worker()
    row = database.wait(job)
    assert (row["state"], row["rows_total"]) == ("succeeded", 90)
    kinds = [
        event["kind"]
        for event in database.execute("SELECT kind FROM tensile.job_events WHERE job_id = %s", job)
    ]
    assert "restarted" in kinds


def test_row_level_security_decides_what_a_job_learns_from(database, start_worker):
    database.execute("ALTER TABLE points OWNER TO CURRENT_USER")
    database.execute("GRANT SELECT ON points TO anna")
    database.execute("ALTER TABLE points ENABLE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY half ON points TO anna USING (id <= 50)")
    start_worker()
    row = database.wait(database.submit("points"))
    assert (row["state"], row["rows_total"]) == ("succeeded", 50)


def test_a_table_that_the_submitter_may_not_read_is_not_read(database, start_worker):
    database.execute("ALTER TABLE points OWNER TO CURRENT_USER")
    start_worker()
    row = database.wait(database.submit("points"))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "42501")
