"""tensile_set_priority, and who may pass the others: at submission, later, and past the functions."""

import pytest

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table', priority => %s)"
SET = "SELECT tensile_set_priority(%s, %s)"

TOO_HIGH = (
    "42501",
    'role "alice" may not raise the priority of a job above 0, got 1',
    "Leave it at 0, or ask an administrator: GRANT tensile_priority TO alice.",
)


@pytest.fixture
def job(site):
    return site.value(SUBMIT, 0, role="alice")


@pytest.fixture
def alice_may(site):
    """Alice has the right, for the time of this test."""
    site.execute("GRANT tensile_priority TO alice")
    yield
    site.execute("REVOKE tensile_priority FROM alice")


def priority_of(site, job):
    return site.job(job)["priority"]


def test_anyone_lowers_a_job_and_raises_it_to_the_default_again(site, job):
    assert site.value(SET, job, -5, role="alice") is True
    assert priority_of(site, job) == -5
    assert site.value(SET, job, 0, role="alice") is True
    assert site.value(SET, job, 0, role="alice") is False
    assert priority_of(site, job) == 0


def test_above_the_default_needs_the_right_wherever_it_is_asked_for(site, job):
    assert site.refusal(SET, job, 1) == TOO_HIGH
    assert site.refusal(SUBMIT, 1) == TOO_HIGH
    assert site.refusal("UPDATE tensile.jobs SET priority = 1") == TOO_HIGH
    request = """{"kind": "train", "source_name": "t", "source_oid": 1259, "priority": 1}"""
    assert site.refusal("SELECT tensile.insert_job(%s)", request) == TOO_HIGH
    assert site.refusal("SELECT tensile.insert_job_visibly(tensile.sign(), %s)", request) == TOO_HIGH
    assert site.value("SELECT max(priority) FROM tensile.jobs") == 0


def test_with_the_right_a_job_is_raised(site, job, alice_may):
    assert site.value(SET, job, 1, role="alice") is True
    assert priority_of(site, site.value(SUBMIT, 3, role="alice")) == 3
    assert site.refusal(SET, job, 2, role="bob")[0] == "42704"


def test_an_admin_has_the_right_over_all_jobs(site, job):
    assert site.value(SET, job, 9, role="carol") is True
    # What was given is kept, lowered or not, and not given again.
    assert site.value(SET, job, 7, role="alice") is True
    assert site.refusal(SET, job, 8)[0] == "42501"
    assert priority_of(site, job) == 7


def test_workers_are_told(site, job):
    with site.connect("puppet_login") as worker:
        worker.execute("LISTEN tensile_jobs")
        site.execute(SET, job, -1, role="alice")
        assert [notify.payload for notify in worker.notifies(timeout=5, stop_after=1)] == [str(job)]


def test_the_queue_is_in_the_new_order(site, job):
    second = site.value(SUBMIT, 0, role="alice")
    site.execute(SET, second, 1, role="carol")
    places = site.execute("SELECT job_id FROM tensile.queue ORDER BY place", role="alice")
    assert [row["job_id"] for row in places] == [second, job]


def test_what_cannot_be_is_refused(site, job):
    assert site.refusal(SET, 17, 0) == ("42704", "no job 17", "tensile.jobs has the jobs that you may see.")
    assert site.refusal(SET, job, 1, role="bob")[0] == "42704"
    assert site.refusal("SELECT tensile_set_priority(%s, NULL)", job)[:2] == ("22023", "priority is NULL")
    site.execute("UPDATE tensile.jobs SET state = 'succeeded'")
    assert site.refusal(SET, job, -1)[:2] == (
        "55000",
        f"job {job} has ended (succeeded) and cannot be given a priority",
    )
