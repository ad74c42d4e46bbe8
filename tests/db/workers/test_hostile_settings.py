"""What databases and sessions are set to, and what it must not change: that workers run, and the bits."""

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

TRAINING = {"epochs": 3, "learning_rate": 0.0149, "options": {"hidden_units": [8]}}

HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "row_security": "off",
    "client_encoding": "LATIN1",
    "array_nulls": "off",
    "bytea_output": "escape",
}


def test_a_databases_settings_keep_no_worker_from_its_work_and_change_no_bits(database, start_worker):
    worker = start_worker()
    job = database.submit("points", **TRAINING)
    assert database.wait(job)["state"] == "succeeded"
    database.let_go(worker)
    name = conninfo_to_dict(database.admin)["dbname"]
    with psycopg.connect(database.admin, autocommit=True) as connection:
        for setting, value in HOSTILE.items():
            (usual,) = connection.execute("SELECT current_setting(%s)", [setting]).fetchone()
            # The test's own connections are the superuser's, and write.
            for whose, wanted in (("DATABASE {}", value), ("ROLE postgres IN DATABASE {}", usual)):
                connection.execute(
                    sql.SQL(f"ALTER {whose} SET {{}} = {{}}").format(
                        sql.Identifier(name), sql.Identifier(setting), sql.Literal(wanted)
                    )
                )
    start_worker()
    again = database.submit("points", **TRAINING)
    assert database.wait(again)["state"] == "succeeded"
    assert database.weights(again) == database.weights(job)
    # An answer has NULLs in it, where nothing is wrong.
    with database.connect() as connection:
        # Off, it is an error wherever it bears on what is read.
        connection.execute("SET row_security = on")
        asked = "SELECT count(tensile_predict('m', points)) FROM points WHERE id < 3"
        assert connection.execute(asked).fetchone() == (2,)


@pytest.fixture
def trained(database, start_worker):
    """With a worker, and a model "m" of points."""
    start_worker()
    job = database.submit("points", **TRAINING)
    assert database.wait(job)["state"] == "succeeded"
    return database


PREDICT = "SELECT count(*) FROM tensile_predict('m', 'points')"


@pytest.mark.parametrize("setting", ["application_name = 'x'", "default_transaction_read_only = on"])
def test_predictions_go_also_where_the_transaction_is_rolled_back_or_may_not_write(trained, setting):
    with trained.connect(autocommit=False) as connection:
        connection.execute(f"SET {setting}")
        connection.commit()
        assert connection.execute(PREDICT).fetchone() == (100,)
        connection.rollback()
    assert trained.execute("SELECT count(*) AS rows FROM tensile.predictions") == [{"rows": 0}]


def test_a_session_may_escape_as_it_likes(trained):
    with trained.connect() as connection:
        connection.execute("SET standard_conforming_strings = off")
        connection.execute("SET escape_string_warning = off")
        assert connection.execute(PREDICT).fetchone() == (100,)


def refusal(connection, statement):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value.sqlstate, caught.value.diag.message_primary, caught.value.diag.message_hint


def test_who_waits_for_what_only_its_own_transaction_sees_is_told(trained):
    with trained.connect(autocommit=False) as connection:
        (job,) = connection.execute(
            "SELECT tensile_submit('mlp', 'points', features => '{a,b}', epochs => 1)"
        ).fetchone()
        state, message, hint = refusal(connection, f"SELECT * FROM tensile_wait({job})")
    assert state == "55000"
    assert message == (
        f"job {job} was submitted by this transaction, and no worker sees it before that is committed"
    )
    assert hint == "COMMIT between tensile_submit and tensile_wait, or call tensile_train."


@pytest.mark.parametrize(
    "locks", ["LOCK TABLE points IN ACCESS EXCLUSIVE MODE", "ALTER TABLE points ADD COLUMN more integer"]
)
def test_who_has_locked_the_table_against_the_worker_is_told(trained, locks):
    with trained.connect(autocommit=False) as connection:
        connection.execute(locks)
        found = refusal(connection, "SELECT * FROM tensile_train('mlp', 'points', features => '{a,b}')")
    assert found == (
        "55000",
        "this transaction has locked public.points, which a worker is to read",
        "COMMIT what truncated, altered or locked it first.",
    )


@pytest.mark.parametrize(
    "options",
    [
        "('{\"dropout\":' || repeat('9', 5000) || '}')",
        "('{\"dropout\":' || repeat('[', 2000) || repeat(']', 2000) || '}')",
    ],
)
def test_json_beyond_pythons_is_refused(database, options):
    with database.connect() as connection:
        state, message, _ = refusal(
            connection,
            f"SELECT tensile_submit('mlp', 'points', features => '{{a,b}}', options => {options}::jsonb)",
        )
    assert state == "22023"
    assert message.startswith("an argument cannot be read: ")


def test_numbers_too_far_apart_are_refused_before_they_are_learned_from(trained):
    trained.execute("ALTER TABLE points ADD COLUMN far float8 DEFAULT 1")
    trained.execute("UPDATE points SET far = 1e300 WHERE id = 7")
    row = trained.wait(trained.submit("points", **TRAINING | {"features": ["a", "far"]}))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "22000")
    assert row["error_message"] == 'the column "far" has numbers too far apart to be learned from'


def test_a_network_larger_than_the_machine_is_refused_before_it_is_made(trained):
    wide = {"options": {"hidden_units": [2**20, 2**20, 2**20]}}
    row = trained.wait(trained.submit("points", **TRAINING | wide))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200")
    assert row["error_message"].startswith("the network and a copy of its weights take ")


def test_who_waits_holds_no_lock_on_its_table(trained):
    with trained.connect(autocommit=False) as connection:
        connection.execute("SELECT * FROM tensile_train('mlp', 'points', features => '{a,b}', epochs => 1)")
        held = connection.execute(
            "SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'points'::regclass"
        ).fetchall()
        assert held == []


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_rows_of_children_have_no_key_of_their_parents(trained, key):
    trained.execute(f"CREATE TABLE parent (id integer {key}, a real, b real)")
    trained.execute("CREATE TABLE child () INHERITS (parent)")
    for table in ("parent", "child"):
        trained.execute(f"INSERT INTO {table} VALUES (1, 1, 2)")
        trained.execute(f"ALTER TABLE {table} OWNER TO anna")
    with trained.connect() as connection:
        found = connection.execute("SELECT row_key FROM tensile_predict('m', 'parent')").fetchall()
    assert found == [(None,), (None,)]


def test_models_restored_in_another_cluster_get_their_owners_back(trained):
    # As docs/sql/administration.md has it.
    trained.execute("UPDATE tensile.models SET owned_by = 4294967294")
    with trained.connect() as connection:
        assert refusal(connection, PREDICT)[0] == "42704"
    trained.execute("DELETE FROM tensile.jobs WHERE finished_at IS NULL")
    for table, column in (("models", "owned_by"), ("jobs", "submitted_by")):
        trained.execute(
            f"UPDATE tensile.{table} SET {column} ="
            " coalesce(to_regrole(quote_ident(owner)), current_user::regrole)"
        )
    with trained.connect() as connection:
        assert connection.execute(PREDICT).fetchone() == (100,)
