"""What the doctor says of roles: who asks, and those that are dropped and have left something."""

from tests.jobs.inserted_rows import add_job, add_model

OF_ROLES = """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'role'"""
OF_OWNERS = """SELECT status, found FROM tensile_doctor() WHERE "check" = 'owner' ORDER BY found"""


def test_whom_workers_may_not_become_is_told_what_helps(site):
    assert site.execute(OF_ROLES, role="alice") == [
        {"status": "ok", "found": "workers may read tables as alice", "hint": None}
    ]
    assert site.execute(OF_ROLES) == [
        {
            "status": "warning",
            "found": "workers may not read tables as postgres, a superuser",
            "hint": "No worker becomes a superuser: SET ROLE to an ordinary role before you train.",
        }
    ]
    site.execute("REVOKE bob FROM tensile_worker")
    try:
        (found,) = site.execute(OF_ROLES, role="bob")
        assert found["found"] == "workers may not read tables as bob"
        assert found["hint"] == "An administrator's tensile_grant_usage allows it."
    finally:
        site.execute("GRANT bob TO tensile_worker")


def test_an_administrator_is_told_of_what_dropped_roles_have_left(site):
    for version in (1, 2):
        add_model(site, owner="bob", version=version)
    add_job(site, "alice", state="queued", days_ago=None)
    add_job(site, "alice")
    assert site.execute(OF_OWNERS, role="carol") == []
    site.execute("UPDATE tensile.models SET owned_by = 4000000000")
    site.execute("UPDATE tensile.jobs SET submitted_by = 4000000001")
    left = "and has left"
    assert site.execute(OF_OWNERS, role="carol") == [
        {
            "status": "warning",
            "found": f"the role alice is dropped, {left} 0 versions of models and 1 jobs that have not ended",
        },
        {
            "status": "warning",
            "found": f"the role bob is dropped, {left} 2 versions of models and 0 jobs that have not ended",
        },
    ]
    assert site.execute(OF_OWNERS, role="bob") == []
