"""What the doctor says of roles: who asks, and those that are dropped and have left something."""

from tests.jobs.inserted_rows import add_job, add_model

OF_ROLES = """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'role'"""
OF_OWNERS = """SELECT status, found, hint FROM tensile_doctor() WHERE "check" = 'owner' ORDER BY found"""


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


def test_an_administrator_is_told_of_what_dropped_roles_have_left_and_what_gives_it_away(site):
    for version in (1, 2):
        add_model(site, owner="bob", version=version)
    add_job(site, "alice", state="queued", days_ago=None)
    add_job(site, "alice")
    assert site.execute(OF_OWNERS, role="carol") == []
    site.execute("UPDATE tensile.models SET owned_by = 4000000000")
    site.execute("UPDATE tensile.jobs SET submitted_by = 4000000001, owner = 'alice (dropped)'")
    alices, bobs = site.execute(OF_OWNERS, role="carol")
    assert (bobs["status"], bobs["found"], alices["found"]) == (
        "warning",
        "the role bob, number 4000000000, was dropped; left of it: 2 versions of models, 0 unfinished jobs",
        "the role alice, number 4000000001, was dropped; left of it: 0 versions of models, 1 unfinished jobs",
    )
    assert site.execute(OF_OWNERS, role="bob") == []
    # What the hint says can be run.
    _, _, statements = bobs["hint"].partition(": ")
    give, _, delete = statements.partition("; or deletes them: ")
    site.execute(give.replace("anna", "bob"))
    assert site.value("SELECT count(*) FROM tensile_models()", role="bob") == 2
    site.execute(delete.removesuffix("."))
    assert site.value("SELECT count(*) FROM tensile.models") == 2
    (left,) = site.execute(OF_OWNERS, role="carol")
    assert left["found"] == alices["found"]
