"""Versions of models that stay the default: what takes them, who may pin, two at once, and dropped ones."""

from functools import partial

import psycopg
import pytest

from tensile_db.catalog import models, searches
from tensile_db.catalog.engine import in_transaction, make_engine
from tests.at_once import at_once
from tests.fixtures.db import Puppet
from tests.jobs.heard_notices import heard_by
from tests.jobs.inserted_rows import add_model

PIN = "SELECT tensile_pin_model('digits', %s)"
UNPIN = "SELECT tensile_unpin_model('digits')"
PREDICT = "SELECT * FROM tensile_predict('digits', 'images_table')"
VERSIONS = (1, 2, 3)


@pytest.fixture
def versions(site):
    """Ids of a model's three versions, alice's."""
    return {version: add_model(site, version=version) for version in VERSIONS}


def pinned(site):
    rows = site.execute("SELECT version FROM tensile_models() WHERE pinned", role="alice")
    return [row["version"] for row in rows]


def notices(site, statement, role="alice"):
    """Run a statement; return what it told."""
    with site.connect(role) as connection:
        told = heard_by(connection)
        connection.execute(statement)
    return told


def asked_versions(site, *statements):
    """Return the version that the job of each statement is of."""
    asked = []

    def remember(puppet, job):
        asked.append(job["model_version"])
        puppet.succeed(job, result={"metrics": {}})

    with Puppet(site, remember):
        for statement in statements:
            site.execute(statement, role="alice")
    return asked


def test_the_pinned_version_is_what_is_used_where_none_is_said(site, versions):
    assert site.value(PIN, 2, role="alice") is True
    evaluate = "SELECT * FROM tensile_evaluate('digits', 'images_table')"
    given = "SELECT * FROM tensile_predict('digits', 'images_table', 3)"
    assert asked_versions(site, PREDICT, evaluate, given) == [2, 2, 3]
    start = """SELECT tensile_submit('vgg16', 'images_table', options => '{"start_from": "digits"}')"""
    job = site.job(site.value(start, role="alice"))
    assert (job["initial_model_id"], job["options"]["start_from_version"]) == (versions[2], 2)
    site.execute("SELECT tensile_cancel(%s)", job["id"], role="alice")
    engine = make_engine(site.dsn("alice"), application_name="test", pool_size=1)
    assert in_transaction(engine, lambda conn: models.find_by_name(conn, "digits")).version == 2
    engine.dispose()
    # A pin takes the place of another, and a newer version does not change it.
    assert site.value(PIN, 1, role="alice") is True
    add_model(site, version=4)
    assert (asked_versions(site, PREDICT), pinned(site)) == ([1], [1])
    assert site.value(PIN, 1, role="alice") is False
    assert [site.value(UNPIN, role="alice") for _ in range(2)] == [True, False]
    assert (asked_versions(site, PREDICT), pinned(site)) == ([4], [])


def test_rows_are_asked_of_the_pinned_version_and_of_no_other_roles_model(site, versions):
    add_model(site, owner="bob", version=7)
    site.execute("SELECT tensile_pin_model('digits', 7)", role="bob")
    asked = []
    row = "SELECT tensile_predict('digits', '\\x00'::bytea)"

    def remember(puppet, job):
        asked.append(job["model_id"])
        puppet.fail(job, "53200", "it does not fit")

    with Puppet(site, remember):
        for version in (3, 1):
            site.value(PIN, version, role="alice")
            assert site.refusal(row)[0] == "53200"
    assert asked == [versions[3], versions[1]]


def test_a_pin_is_rolled_back_with_its_transaction(site, versions):
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(PIN, [1])
        connection.rollback()
    assert pinned(site) == []


def test_whoever_trains_under_that_name_is_told_that_the_default_stays(site, versions):
    submit = "SELECT tensile_submit('vgg16', 'images_table', model => 'digits', validation => 0)"
    search = (
        "SELECT tensile_submit_search('vgg16', 'images_table', model => 'digits',"
        """ space => '{"learning_rate": {"choices": [0.1, 0.2]}}')"""
    )
    said = (
        'version 2 of the model "digits" is pinned and stays its default;'
        " tensile_pin_model and tensile_unpin_model change that"
    )
    assert said not in notices(site, submit)
    site.value(PIN, 2, role="alice")
    for statement in (submit, search):
        assert said in notices(site, statement)
        # Hers, and nobody else's.
        assert said not in notices(site, statement, role="bob")
    assert said not in notices(site, submit.replace("digits", "others"))


def test_where_the_pinned_version_is_dropped_the_newest_is_the_default(site, versions):
    site.value(PIN, 1, role="alice")
    assert notices(site, "SELECT tensile_drop_model('digits', 3)") == []
    (said,) = notices(site, "SELECT tensile_drop_model('digits', 1)")
    assert said.startswith('version 1 of the model "digits" was pinned; its default is now the newest')
    assert asked_versions(site, PREDICT) == [2]
    add_model(site, version=3)
    site.value(PIN, 2, role="alice")
    assert site.value("SELECT tensile_drop_model('digits')", role="alice") == 2
    assert site.value("SELECT count(*) FROM tensile.models") == 0


def test_what_cannot_be_pinned_is_refused(site, versions):
    assert site.refusal(PIN, 4) == ("42704", 'model "digits" has no version 4', "It has: 1, 2, 3.")
    assert site.refusal("SELECT tensile_pin_model('digit', 1)")[2] == 'Did you mean "digits"?'
    assert site.refusal("SELECT tensile_unpin_model('digit')")[0] == "42704"
    assert site.refusal(PIN, None) == (
        "22023",
        "the version is NULL",
        "tensile_unpin_model makes the newest version the default again.",
    )
    assert site.refusal("SELECT tensile_pin_model(NULL, 1)")[:2] == ("22023", "the model is NULL")
    site.value(PIN, 2, role="alice")
    # In the order of their numbers, whichever is pinned.
    assert site.refusal(PIN, 4)[2] == "It has: 1, 2, 3."
    assert pinned(site) == [2]


def test_others_cannot_pin_and_an_administrator_can(site, versions):
    assert site.refusal(PIN, 1, role="bob")[0] == "42704"
    assert site.refusal(PIN, 1, role="mallory")[0] == "42501"
    alice = site.value("SELECT oid FROM pg_roles WHERE rolname = 'alice'")
    signed = "SELECT tensile.set_pinned(tensile.sign(), %s::oid, 'digits', 1)"
    assert site.refusal(signed, alice, role="bob") == ("42501", 'the model "digits" is another role\'s', None)
    assert site.refusal("UPDATE tensile.models SET pinned = true WHERE version = 1")[0] == "42501"
    assert pinned(site) == []
    assert site.value(PIN, 1, role="carol") is True
    assert pinned(site) == [1]


def test_inside_a_definers_function_nothing_is_pinned(site, versions):
    site.execute("GRANT CREATE ON SCHEMA public TO alice")
    site.execute(
        "CREATE FUNCTION pin_as_alice() RETURNS boolean LANGUAGE sql SECURITY DEFINER"
        " AS $$ SELECT tensile_pin_model('digits', 1) $$",
        role="alice",
    )
    sqlstate, message, _ = site.refusal("SELECT pin_as_alice()", role="bob")
    assert sqlstate == "42501"
    assert message.startswith(
        'role "bob" cannot change a model\'s default version while it acts as role "alice"'
    )
    assert pinned(site) == []


def test_who_pins_by_a_snapshot_from_before_another_pin_is_told_to_try_again(site, versions):
    with site.connect("alice", autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        site.value(PIN, 3, role="alice")
        with pytest.raises(psycopg.errors.SerializationFailure, match="has been pinned meanwhile"):
            connection.execute(PIN, [1])
    assert pinned(site) == [3]


def test_of_several_that_pin_at_once_each_is_done_and_one_is_pinned(site, versions):
    def pin_often(version):
        with site.connect("alice") as connection:
            for _ in range(20):
                connection.execute(PIN, [version])

    at_once(pin_often, VERSIONS)
    assert len(pinned(site)) == 1


def test_a_version_that_is_dropped_while_its_pin_waits_is_not_pinned(site, versions):
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SELECT tensile_drop_model('digits', 2)")
        waiting = site.soon_after_a_call("tensile_pin_model", connection.commit)
        with pytest.raises(psycopg.errors.UndefinedObject) as caught:
            site.execute(PIN, 2, role="alice")
        waiting.join()
    assert caught.value.diag.message_primary == 'model "digits" has no version 2'
    assert caught.value.diag.message_hint == "It has just been dropped, or replaced by a search."
    assert pinned(site) == []
    site.value(PIN, 1, role="alice")
    with site.connect("alice", autocommit=False) as connection:
        connection.execute("SELECT tensile_drop_model('digits')")
        waiting = site.soon_after_a_call("tensile_unpin_model", connection.commit)
        assert site.value(UNPIN, role="alice") is False
        waiting.join()


def test_who_pins_and_who_drops_never_deadlock(site):
    for version in range(1, 7):
        add_model(site, version=version)
    # So that rows are come across in the order in which they lie, which is not that of their versions.
    for version in (1, 3, 2, 5, 1):
        site.value(PIN, version, role="alice")
    site.execute("ANALYZE tensile.models")

    def pin(first):
        with site.connect("alice") as connection:
            for place in range(60):
                connection.execute(PIN, [(first + place) % 6 + 1])

    def drop(_):
        with site.connect("alice", autocommit=False) as connection:
            for _ in range(30):
                connection.execute("SELECT tensile_drop_model('digits')")
                connection.rollback()

    at_once(lambda work: work[0](work[1]), [(pin, 0), (pin, 3), (drop, None)])
    assert len(pinned(site)) == 1


def test_a_better_trial_removes_the_models_of_beaten_ones_that_are_not_pinned(site):
    # Of no search: it would be started from where another could still be replaced.
    add_model(site, version=1)
    space = """'{"learning_rate": {"choices": [0.1, 0.2, 0.3]}}'"""
    search = site.value(
        f"SELECT tensile_submit_search('vgg16', 'images_table', model => 'digits', space => {space})",
        role="alice",
    )
    engine = make_engine(site.admin, application_name="test", pool_size=1)
    row = in_transaction(engine, lambda conn: searches.find(conn, search))

    def end(number):
        """Have another trial end, better than those before; return its model's version."""
        trial = site.value(
            "INSERT INTO tensile.jobs"
            " (kind, submitted_by, owner, architecture, source_oid, source_name, model, search_id)"
            " SELECT 'train', submitted_by, owner, architecture, source_oid, source_name, model, id"
            " FROM tensile.jobs WHERE id = %s RETURNING id",
            search,
        )
        site.execute(
            "INSERT INTO tensile.search_trials (search_id, number, job_id, params) VALUES (%s, %s, %s, '{}')",
            search,
            number,
            trial,
        )
        finish = partial(searches.finish_trial, search=row, job=trial, value=1.0 - number / 10)
        assert in_transaction(engine, finish)
        version = site.value("SELECT max(version) + 1 FROM tensile.models")
        model = add_model(site, version=version)
        site.execute("UPDATE tensile.models SET job_id = %s WHERE id = %s", trial, model)
        site.execute(
            "UPDATE tensile.jobs SET state = 'succeeded', model_id = %s, model_version = %s WHERE id = %s",
            model,
            version,
            trial,
        )
        return version

    def kept():
        """Return the models' versions, and those of the trials' jobs."""
        models_kept = site.execute("SELECT version FROM tensile.models ORDER BY version")
        trials = site.execute(
            "SELECT model_version FROM tensile.jobs WHERE search_id = %s ORDER BY id", search
        )
        return [row["version"] for row in models_kept], [row["model_version"] for row in trials]

    assert end(0) == 2
    start = """SELECT tensile_submit('vgg16', 'images_table', options => '{"start_from": "digits"}')"""

    def started_from():
        return site.job(site.value(start, role="alice"))["options"]["start_from_version"]

    assert started_from() == 1
    site.value(PIN, 2, role="alice")
    assert started_from() == 2
    assert (end(1), kept()) == (3, ([1, 2, 3], [2, 3]))
    assert (end(2), kept()) == (3, ([1, 2, 3], [2, None, 3]))
    site.value(UNPIN, role="alice")
    assert (end(3), kept()) == (2, ([1, 2], [None, None, None, 2]))
    engine.dispose()
