"""A role that gets another name keeps what is its own, and is shown by the name that it has now."""

import pytest

from tests.fixtures.db import Puppet
from tests.jobs.inserted_rows import ELSEWHERE, add_model

NAME = "Bo's"

#: As docs/sql/administration.md has it.
TO_ANOTHER_ROLE = """
UPDATE tensile.models m SET owned_by = r.oid, owner = r.rolname FROM pg_roles r
WHERE r.rolname = 'alice' AND m.owned_by = '"Bo''s"'::regrole;
"""


@pytest.fixture
def renamed(site):
    """A role that has got another name since it made a model, submitted a job and began a search."""
    site.execute("CREATE ROLE bo LOGIN; SELECT tensile_grant_usage('bo'); GRANT SELECT ON points TO bo")
    add_model(site, owner="bo", columns="a")
    site.execute("SELECT tensile_submit('mlp', 'points', 'y')", role="bo")
    site.execute(
        """SELECT tensile_submit_search('mlp', 'points', '{"epochs": {"choices": [1, 2]}}', target => 'y')""",
        role="bo",
    )
    site.execute("""ALTER ROLE bo RENAME TO "Bo's" """)
    yield NAME
    site.execute("""DROP OWNED BY "Bo's"; DROP ROLE "Bo's" """)


@pytest.mark.parametrize("role", [NAME, "carol"])
@pytest.mark.parametrize(
    ("of", "column"),
    [
        ("tensile_models()", "owner"),
        ("tensile.queue", "owner"),
        ("tensile.progress", "usename"),
        ("tensile.searches", "owner"),
    ],
)
def test_owners_are_shown_by_the_names_that_they_have(site, renamed, of, column, role):
    assert site.value(f"SELECT DISTINCT {column} FROM {of}", role=role) == NAME


def test_names_have_the_views_former_types_which_an_installation_before_cannot_change(site):
    found = site.execute(
        "SELECT a.attrelid::regclass::text AS of, a.atttypid::regtype::text AS type,"
        " a.attcollation::regcollation::text AS collation FROM pg_attribute a"
        " WHERE a.attrelid = ANY ('{tensile.queue,tensile.progress,tensile.searches}'::regclass[])"
        " AND a.attname IN ('owner', 'usename') ORDER BY 1"
    )
    assert [tuple(row.values()) for row in found] == [
        (f"tensile.{view}", "text", '"default"') for view in ("progress", "queue", "searches")
    ]


def test_a_job_that_serves_a_model_bears_its_owners_present_name(site, renamed):
    site.execute(
        "INSERT INTO tensile.serving_requests (model_id, requested_by, client_pid, client_started_at, form,"
        " wants_probabilities, features)"
        " SELECT id, owned_by, 1, now(), 'bytes', false, '' FROM tensile.models"
    )
    assert site.value("SELECT owner FROM tensile.jobs WHERE kind = 'serve'") == NAME


def test_several_owners_of_a_model_are_told_by_their_present_names(site, renamed):
    add_model(site, owner="alice")
    _, message, _ = site.refusal("SELECT tensile_predict('digits', 'images_table')", role="carol")
    assert message == f'several owners have a model "digits": {NAME}, alice'


def test_the_role_whose_device_time_is_used_up_is_told_by_its_present_name(site, renamed):
    job = site.value("SELECT min(id) FROM tensile.jobs")
    site.execute("SELECT tensile_pause(%s)", job, role=NAME)
    site.execute("SELECT tensile_set_quota(%s, max_device_seconds => 0)", NAME, role="carol")
    _, message, _ = site.refusal("SELECT tensile_resume(%s)", job, role=NAME)
    assert message == f'role "{NAME}" has used 0.0 seconds of device time, and may use 0'


def test_the_hint_for_administrators_can_be_run(site, renamed):
    site.execute("""REVOKE "Bo's" FROM tensile_worker""")
    with Puppet(site, Puppet.succeed):
        _, _, hint = site.refusal("SELECT tensile_train('mlp', 'points', 'y')", role=NAME)
    assert hint == "Ask an administrator: SELECT tensile_grant_usage('Bo''s')."


def test_of_a_role_that_is_gone_the_name_that_it_had_is_shown(site):
    add_model(site)
    site.execute("UPDATE tensile.models SET owned_by = 4294967294")
    assert site.value("SELECT owner FROM tensile_models()", role="carol") == "alice"


def test_in_another_cluster_renamed_owners_get_back_what_is_theirs(site, renamed):
    site.execute("UPDATE tensile.jobs SET state = 'failed', finished_at = now() WHERE kind = 'train'")
    site.execute("SELECT tensile.refresh_names()")
    # There the number is another one's.
    site.execute("UPDATE tensile.models SET owned_by = 'alice'::regrole")
    site.execute("UPDATE tensile.jobs SET submitted_by = 'alice'::regrole")
    site.execute(ELSEWHERE)
    site.execute("SELECT * FROM tensile_after_restore()")
    assert site.value("SELECT count(*) FROM tensile_models()", role=NAME) == 1
    assert site.value("SELECT kind FROM tensile.jobs", role=NAME) == "train"
    assert site.value("SELECT count(*) FROM tensile.jobs", role="alice") == 0


def test_a_renamed_roles_models_can_be_given_to_another_one(site, renamed):
    site.execute(TO_ANOTHER_ROLE)
    assert site.value("SELECT owner FROM tensile_models()", role="alice") == "alice"
    assert site.value("SELECT count(*) FROM tensile_models()", role=NAME) == 0
    # Nor does it come back by name.
    site.execute("SELECT tensile.refresh_names()")
    site.execute(ELSEWHERE)
    site.execute("SELECT * FROM tensile_after_restore()")
    assert site.value("SELECT owner FROM tensile_models()", role="alice") == "alice"


def test_a_quota_is_taken_back_whatever_the_role_is_called_now(site, renamed):
    site.execute("SELECT tensile_set_quota(%s, max_concurrent_jobs => 1)", NAME, role="carol")
    site.execute("""ALTER ROLE "Bo's" RENAME TO bo""")
    try:
        # As docs/sql/administration.md has it.
        site.execute("DELETE FROM tensile.quotas WHERE role_oid = 'bo'::regrole", role="carol")
    finally:
        site.execute("""ALTER ROLE bo RENAME TO "Bo's" """)
    assert site.value("SELECT count(*) FROM tensile.quotas") == 0
