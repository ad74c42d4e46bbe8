"""What a role that may use one model cannot do to the rows of others: a worker's postman on a real server."""

import time

import psycopg
import pytest

from tensile_db.catalog import serving
from tensile_db.catalog.serving import Answer
from tests.db.serving.asked_rows import ASK, ask, is_answered, says, serve, take, wait_until_answered
from tests.jobs.inserted_rows import add_model


def test_a_request_that_its_role_has_locked_holds_up_no_answer_but_its_own(site, postman):
    mine, hers = add_model(site, owner="bob"), add_model(site)
    boxes = {model: serve(postman, model) for model in (mine, hers)}
    with site.connect("bob") as bob, site.connect("alice") as alice, site.connect("alice") as other:
        locked, free = ask(alice, hers), ask(bob, mine)
        assert (take(boxes[hers]), take(boxes[mine])) == ([locked], [free])
        with other.transaction():
            other.execute("SELECT FROM tensile.serving_requests FOR UPDATE")
            postman.answer([says(locked), says(free)])
            wait_until_answered(site, free)
            again = ask(bob, mine)
            postman.answer([says(again) for again in take(boxes[mine])])
            wait_until_answered(site, again)
            assert not is_answered(site, locked)
        wait_until_answered(site, locked)


@pytest.mark.parametrize(
    "by",
    [
        "SELECT tensile.delete_abandoned_requests()",
        "DELETE FROM tensile.models",
        "UPDATE tensile.jobs SET state = 'failed', error_sqlstate = '53200', error_message = 'too large'",
    ],
)
def test_nothing_that_ends_requests_waits_for_one_that_is_locked(site, by):
    model = add_model(site)
    with site.connect("alice") as alice, site.connect("alice") as other:
        kept = ask(alice, model)
        gone = other.execute(
            "SELECT tensile.insert_serving_request(%s, 'bytes', false, '', 1, now())", [model]
        ).fetchone()["insert_serving_request"]
        with other.transaction():
            other.execute(
                "SELECT FROM tensile.serving_requests WHERE id IN (%s, %s) FOR UPDATE", [kept, gone]
            )
            site.execute(f"SET lock_timeout = '2s'; {by}")


def test_a_request_that_missed_its_models_end_is_told_of_it_when_it_is_asked_again(site):
    model = add_model(site)
    with site.connect("alice") as alice, site.connect("alice") as other:
        request = ask(alice, model)
        with other.transaction():
            other.execute("SELECT FROM tensile.serving_requests FOR UPDATE")
            site.execute("DELETE FROM tensile.models")
        assert not is_answered(site, request)
        alice.execute("SELECT tensile.ask_serving_again(%s)", [request])
        (row,) = site.execute("SELECT * FROM tensile.serving_requests")
    assert (row["answered"], row["error_sqlstate"]) == (True, "42704")


def test_a_flood_of_rows_is_brought_in_parts_and_holds_up_no_other_model(site, postman):
    flooded, calm = add_model(site), add_model(site, owner="bob")
    boxes = {model: serve(postman, model) for model in (flooded, calm)}
    with site.connect("alice") as alice, site.connect("bob") as bob:
        alice.execute(ASK.format(model=flooded, features="'\\x01'") + ", generate_series(1, 3000)").fetchall()
        asked = ask(bob, calm)
        assert take(boxes[calm]) == [asked]
        done = []
        while len(done) < 3000:
            brought = take(boxes[flooded])
            assert len(brought) <= 256
            done += brought
            postman.answer([says(request) for request in brought])
    assert len(set(done)) == 3000


def test_large_rows_are_brought_a_few_at_a_time_and_too_large_ones_refused(site, postman):
    model = add_model(site)
    inbox = serve(postman, model)
    large = f"decode(repeat('00', {24 * 2**20}), 'hex')"
    with site.connect("alice") as alice:
        alice.execute(ASK.format(model=model, features=large) + ", generate_series(1, 6)").fetchall()
        refused = ask(
            alice,
            model,
            f"decode(repeat('00', {serving.LARGEST_NBYTES // 2}), 'hex')"
            f" || decode(repeat('00', {serving.LARGEST_NBYTES // 2 + 1}), 'hex')",
        )
        done = []
        while len(done) < 6:
            brought = take(inbox)
            assert len(brought) <= 3
            done += brought
            postman.answer([says(request) for request in brought])
        wait_until_answered(site, refused)
    (row,) = site.execute("SELECT * FROM tensile.serving_requests WHERE id = %s", refused)
    assert row["error_sqlstate"] == "54000"
    assert row["error_message"].startswith("the row has 128.0 MiB of features")


def test_only_ones_own_request_can_be_taken_away(site):
    model = add_model(site)
    with site.connect("alice") as alice:
        request = ask(alice, model)
        for role in ("bob", "carol"):
            assert (
                site.value("SELECT tensile.delete_serving_request(tensile.sign(), %s)", request, role=role)
                is False
            )
        assert site.refusal("DELETE FROM tensile.serving_requests")[0] == "42501"
        assert (
            site.value("SELECT tensile.delete_serving_request(tensile.sign(), %s)", request, role="alice")
            is True
        )


def test_the_kept_connection_has_a_name_that_cannot_be_guessed_and_ends_when_it_is_not_used(site):
    names = "SELECT unnest(tensile.dblink_get_connections()) AS name"
    setting = "SELECT current_setting(''idle_session_timeout'')"
    over = f"SELECT tensile.over_serving_connection(tensile.sign(), '{setting}') AS t"
    kept = []
    for _ in range(2):
        with psycopg.connect(site.admin, autocommit=True) as session:
            assert session.execute(over).fetchone() == ("1min",)
            ((name,),) = session.execute(names).fetchall()
            session.execute("SELECT tensile.dblink_exec(%s, 'SET idle_session_timeout = 50')", [name])
            time.sleep(0.5)
            assert session.execute(over).fetchone() == ("1min",)
            ((after,),) = session.execute(names).fetchall()
            kept += [name, after]
    assert len(set(kept)) == 4
    assert all(len(name.split()[-1]) == 36 for name in kept)


def test_a_connection_whose_name_an_error_has_told_is_kept_no_longer(site):
    over = "SELECT tensile.over_serving_connection(tensile.sign(), 'SELECT {}')"
    with psycopg.connect(site.admin, autocommit=True) as session:
        session.execute(over.format("1"))
        ((name,),) = session.execute("SELECT unnest(tensile.dblink_get_connections())").fetchall()
        with pytest.raises(psycopg.errors.DivisionByZero) as caught:
            session.execute(over.format("1 / 0"))
        assert name in caught.value.diag.context
        assert session.execute("SELECT unnest(tensile.dblink_get_connections())").fetchall() == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_whether_a_worker_is_alive_is_asked_now_and_by_its_own_lease(site, level):
    site.execute(
        "INSERT INTO tensile.workers (login, host, pid, device_name, version, state, lease_s, heartbeat_at)"
        " VALUES (current_user, 'here', 1, 'cpu', '0', 'ready', 30, now() - interval '29.5 seconds')"
    )
    with site.connect("alice", autocommit=False) as alice:
        alice.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        alice.execute("SELECT tensile.require_worker()")
        time.sleep(1)
        site.execute("UPDATE tensile.workers SET heartbeat_at = now()")
        alice.execute("SELECT tensile.require_worker()")
        site.execute("UPDATE tensile.workers SET heartbeat_at = now() - interval '1 minute', lease_s = 90")
        alice.execute("SELECT tensile.require_worker()")
        site.execute("UPDATE tensile.workers SET lease_s = 30")
        if level == "READ COMMITTED":
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
                alice.execute("SELECT tensile.require_worker()")


def test_a_session_that_is_cancelled_at_any_moment_leaves_no_request_behind(site):
    add_model(site)
    site.execute(
        "INSERT INTO tensile.workers (login, host, pid, device_name, version, state)"
        " VALUES (current_user, 'here', 1, 'cpu', '0', 'ready')"
    )
    with site.connect("alice") as alice:
        for ms in [*range(1, 60), *range(1, 60)]:
            alice.execute(f"SET statement_timeout = {ms}")
            with pytest.raises(psycopg.errors.QueryCanceled):
                alice.execute("SELECT tensile_predict('digits', '\\x00'::bytea)")
        assert site.value("SELECT count(*) FROM tensile.serving_requests") == 0


def test_nobody_begins_serving_but_by_a_request(site):
    """Such jobs count for no quota of jobs and come also where a worker has no place left."""
    model = add_model(site)
    for value in ("NULL", model):
        assert (
            site.refusal(
                "INSERT INTO tensile.jobs (kind, submitted_by, owner, source_oid, source_name, model_id)"
                f" SELECT 'serve', oid, rolname, 0, '', {value} FROM pg_roles WHERE rolname = 'alice'"
            )[0]
            == "42501"
        )
    with site.connect("alice") as alice:
        ask(alice, model)
        assert site.value("SELECT count(*) FROM tensile.jobs WHERE kind = 'serve'") == 1


@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres, DMY", "ISO"])
def test_a_sessions_start_is_told_alike_in_every_style_of_dates(site, style):
    """Misread, its session would be taken for gone, and its requests be taken away."""
    model = add_model(site)
    with site.connect("alice") as alice:
        alice.execute(f"SET DateStyle = '{style}'; SET TimeZone = 'Asia/Kolkata'")
        alice.execute(
            "SELECT tensile.request_serving_visibly(tensile.sign(), %s, 'bytes', false, '\\x00')", [model]
        )
        (row,) = site.execute(
            "SELECT r.client_started_at = a.backend_start AS same FROM tensile.serving_requests r"
            " JOIN pg_stat_activity a ON a.pid = r.client_pid"
        )
        assert row == {"same": True}
        assert alice.execute("SELECT tensile.forget_serving_visibly(tensile.sign()) AS n").fetchone() == {
            "n": 1
        }


def test_a_row_of_too_many_bytes_is_refused_before_it_is_sent(site):
    add_model(site)
    site.execute(
        "INSERT INTO tensile.workers (login, host, pid, device_name, version, state)"
        " VALUES (current_user, 'here', 1, 'cpu', '0', 'ready')"
    )
    half = f"decode(repeat('00', {150 * 2**20}), 'hex')"
    assert site.refusal(f"SELECT tensile_predict('digits', {half} || {half})")[:2] == (
        "54000",
        "the row has 300.0 MiB of features, and a row by itself may have 128.0 MiB",
    )


def test_an_answer_that_cannot_be_written_holds_up_no_other(site, postman):
    model = add_model(site)
    inbox = serve(postman, model)
    with site.connect("alice") as alice:
        bad, good = ask(alice, model), ask(alice, model)
        take(inbox, 2)
        postman.answer([Answer(request=bad, prediction="\ud800"), Answer(request=good, prediction="7")])
        wait_until_answered(site, good)
        wait_until_answered(site, bad)
        found = site.execute("SELECT * FROM tensile.serving_requests WHERE id = %s", bad)
        assert found[0]["error_sqlstate"] == "XX000"


def test_a_first_row_waits_for_no_submission_of_the_same_role(site):
    site.execute("INSERT INTO tensile.quotas (role_oid, max_device_seconds) VALUES (0, 1000)")
    model = add_model(site)
    with site.connect("alice") as alice, site.connect("alice") as other, alice.transaction():
        alice.execute("SELECT tensile_submit('vgg16', 'images_table')")
        # As the loopback connection asks.
        ask(other, model)
        assert (
            site.value("SELECT count(*) FROM tensile.jobs WHERE kind = 'serve' AND model_id = %s", model) == 1
        )
