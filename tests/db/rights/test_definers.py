"""Functions and views that run as their owner: jobs are the owner's, and nobody waits or predicts there."""

from tests.fixtures.db import Puppet
from tests.jobs.inserted_rows import add_model


def test_inside_a_definers_function_jobs_are_the_definers_and_waiting_is_refused(site):
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    for name, body in (
        ("submit", "SELECT tensile_submit('vgg16', 'images_table')"),
        ("train", "SELECT job_id FROM tensile_train('vgg16', 'images_table')"),
    ):
        site.execute(
            f"CREATE FUNCTION {name}_as_bob() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS $$ {body} $$",
            role="bob",
        )
    job = site.value("SELECT submit_as_bob()", role="alice")
    assert site.job(job)["owner"] == "bob"
    with Puppet(site, Puppet.succeed):
        sqlstate, message, hint = site.refusal("SELECT train_as_bob()")
    assert (sqlstate, hint) == ("42501", "Use tensile_submit there, whose job is the function owner's.")
    assert message.startswith('role "alice" cannot wait for a job while it acts as role "bob"')


def test_inside_a_definers_function_no_model_is_dropped(site):
    model = add_model(site, owner="bob")
    site.execute("GRANT CREATE ON SCHEMA public TO bob")
    site.execute(
        "CREATE FUNCTION drop_as_bob() RETURNS bigint LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile_drop_model('digits')::bigint $$",
        role="bob",
    )
    sqlstate, message, _ = site.refusal("SELECT drop_as_bob()")
    assert sqlstate == "42501"
    assert message == (
        'role "alice" cannot drop a model while it acts as role "bob",'
        " in a SECURITY DEFINER function or a materialized view of that role"
    )
    oid = site.value("SELECT oid FROM pg_roles WHERE rolname = 'bob'")
    assert (
        site.value("SELECT tensile.delete_models(tensile.sign(), %s::oid, 'digits', NULL)", oid, role="alice")
        == 0
    )
    assert site.value("SELECT id FROM tensile.models") == model


def test_who_refreshes_anothers_view_that_predicts_is_told_to_leave_it_to_its_owner(site):
    add_model(site)
    site.execute("GRANT CREATE ON SCHEMA public TO alice")
    site.execute(
        "CREATE MATERIALIZED VIEW predicted AS SELECT tensile_predict('digits', '\\x00'::bytea) WITH NO DATA",
        role="alice",
    )
    sqlstate, message, hint = site.refusal("REFRESH MATERIALIZED VIEW predicted", role="postgres")
    assert sqlstate == "42501"
    assert message == (
        'role "postgres" cannot predict while it acts as role "alice",'
        " in a SECURITY DEFINER function or a materialized view of that role"
    )
    assert hint.endswith("have the view's owner refresh it.")
