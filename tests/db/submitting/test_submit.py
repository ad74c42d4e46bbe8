"""tensile_submit: what is asked for, what is inferred, and what is refused."""

import pytest

from tensile_db.scheduler.policies import POLICIES
from tests.jobs.heard_notices import heard_by

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"


def test_only_the_architecture_and_the_source_are_needed(site):
    job = site.value(SUBMIT, role="alice")
    row = site.job(job)
    asked = {
        name: row[name]
        for name in (
            "kind",
            "state",
            "owner",
            "architecture",
            "source_name",
            "target",
            "features",
            "model",
            "epochs",
            "batch_size",
            "optimizer",
            "learning_rate",
            "validation",
            "seed",
            "priority",
            "memory_limit_nbytes",
            "policy",
            "options",
        )
    }
    assert asked == {
        "kind": "train",
        "state": "queued",
        "owner": "alice",
        "architecture": "vgg16",
        "source_name": "public.images_table",
        "target": "label",
        "features": ["image"],
        "model": "vgg16",
        "epochs": 5,
        "batch_size": 32,
        "optimizer": "momentum",
        "learning_rate": 0.01,
        "validation": 0.1,
        "seed": 0,
        "priority": 0,
        "memory_limit_nbytes": None,
        "policy": "auto",
        "options": {},
    }


def test_every_argument_reaches_the_job(site):
    job = site.value(
        "SELECT tensile_submit('mlp', 'points'::regclass, target => 'y', features => '{b,a}', model => 'm',"
        " epochs => 2, batch_size => 3, optimizer => 'adam', learning_rate => 0.25, validation => 0,"
        " seed => 7, priority => -1, memory_limit => 1000, policy => 'vanilla',"
        """ options => '{"hidden_units": [4, 2], "betas": [0.5, 0.75], "dropout": null}')""",
        role="bob",
    )
    row = site.job(job)
    assert (row["owner"], row["target"], row["features"], row["model"]) == ("bob", "y", ["b", "a"], "m")
    assert (row["epochs"], row["batch_size"], row["optimizer"], row["learning_rate"]) == (2, 3, "adam", 0.25)
    assert (row["validation"], row["seed"], row["priority"], row["memory_limit_nbytes"]) == (0, 7, -1, 1000)
    assert (row["policy"], row["options"]) == ("vanilla", {"hidden_units": [4, 2], "betas": [0.5, 0.75]})


def test_an_architecture_of_a_package_has_options_that_only_the_package_knows(site):
    job = site.value(
        """SELECT tensile_submit('theirs', 'images_table', options => '{"width": 3}')""", role="alice"
    )
    assert site.job(job)["options"] == {"width": 3}


def test_a_null_argument_means_its_default(site):
    job = site.value(
        "SELECT tensile_submit('vgg16', 'images_table', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL, NULL, NULL, NULL)",
        role="alice",
    )
    row = site.job(job)
    assert (row["epochs"], row["batch_size"], row["optimizer"], row["validation"]) == (5, 32, "momentum", 0.1)


def test_a_job_rolled_back_was_never_there(site):
    with site.connect("alice", autocommit=False) as connection:
        connection.execute(SUBMIT)
        connection.rollback()
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_others_see_a_job_and_workers_are_told_when_it_is_committed(site):
    with site.connect("puppet_login") as worker, site.connect("alice", autocommit=False) as connection:
        worker.execute("LISTEN tensile_jobs")
        job = connection.execute(SUBMIT).fetchone()["tensile_submit"]
        assert list(worker.notifies(timeout=0.1)) == []
        assert site.value("SELECT count(*) FROM tensile.jobs") == 0
        connection.commit()
        (heard,) = worker.notifies(timeout=5, stop_after=1)
        assert heard.payload == str(job)
        assert site.value("SELECT count(*) FROM tensile.jobs") == 1


@pytest.mark.parametrize(
    ("columns", "target", "features"),
    [
        ("id serial PRIMARY KEY, img bytea, label int", "label", ["img"]),
        ("img bytea, width int, class text", "class", ["img"]),
        ("pixels real[], target float8", "target", ["pixels"]),
        ("pixels smallint[], Y boolean", "y", ["pixels"]),
        ('"Label" int, data bytea', "Label", ["data"]),
    ],
)
def test_target_and_features_are_inferred_for_images(site, columns, target, features):
    site.execute(f"CREATE TABLE t ({columns}); GRANT SELECT ON t TO alice")
    site.execute("INSERT INTO t DEFAULT VALUES")
    row = site.job(site.value("SELECT tensile_submit('resnet50', 't')", role="alice"))
    assert (row["target"], row["features"]) == (target, features)


def test_pixels_in_bytes_are_looked_for_among_the_images(site):
    site.execute("CREATE TABLE t (width int, img bytea, label int); GRANT SELECT ON t TO alice")
    site.execute("INSERT INTO t DEFAULT VALUES")
    options = '{"raw_shape": [8, 8, 3]}'
    job = site.value(f"SELECT tensile_submit('resnet50', 't', options => '{options}')", role="alice")
    assert site.job(job)["features"] == ["img"]


@pytest.mark.parametrize(
    ("columns", "features"),
    [
        ("id int, a real, b numeric, label text", ["a", "b"]),
        (
            '"ID" int, "Customer_ID" int, "userId" int, paid int, "GRID" int, y int',
            ["paid", "GRID"],
        ),
        ("k int GENERATED ALWAYS AS IDENTITY, user_id int, a int, label int", ["a"]),
        ("k int, a int, label int, PRIMARY KEY (k)", ["a"]),
        ("k int, a int, b int, label int, PRIMARY KEY (k) INCLUDE (a)", ["a", "b"]),
        ("a int, t text, u timestamptz, oid_like oid, label int", ["a"]),
        ("img bytea, label int", ["img"]),
        ("vector real[], label int", ["vector"]),
        ("a positive_small, label int", ["a"]),
        ("a int, ok boolean, label int", ["a", "ok"]),
        ("flags boolean[], label int", ["flags"]),
        ("vector positive_small[], label int", ["vector"]),
    ],
)
def test_keys_and_columns_without_numbers_are_no_features_of_a_table(site, columns, features):
    site.execute("CREATE DOMAIN small AS int; CREATE DOMAIN positive_small AS small CHECK (VALUE > 0)")
    site.execute(f"CREATE TABLE t ({columns}); GRANT SELECT ON t TO alice")
    site.execute("INSERT INTO t DEFAULT VALUES" if "PRIMARY" not in columns else "INSERT INTO t VALUES (1)")
    row = site.job(site.value("SELECT tensile_submit('mlp', 't')", role="alice"))
    assert row["features"] == features


@pytest.mark.parametrize(
    "make",
    [
        "CREATE VIEW s AS SELECT * FROM images_table",
        "CREATE MATERIALIZED VIEW s AS SELECT * FROM images_table",
        """
        CREATE TABLE s (id int, image bytea, label text) PARTITION BY LIST (label);
        CREATE TABLE s_odd PARTITION OF s DEFAULT;
        INSERT INTO s SELECT * FROM images_table
        """,
    ],
)
def test_views_and_partitioned_tables_are_sources(site, make):
    site.execute(make)
    site.execute("GRANT SELECT ON s TO alice")
    row = site.job(site.value("SELECT tensile_submit('vgg16', 's')", role="alice"))
    assert (row["source_name"], row["features"]) == ("public.s", ["image"])


def test_hostile_names_are_only_names(site):
    site.execute('CREATE SCHEMA "a b\'; DROP"')
    site.execute(
        'CREATE TABLE "a b\'; DROP"."x"".{y} %s ☃" ("π {0} $1" bytea, "la""bel" int);'
        'INSERT INTO "a b\'; DROP"."x"".{y} %s ☃" VALUES (\'\', 1);'
        'GRANT USAGE ON SCHEMA "a b\'; DROP" TO alice;'
        'GRANT SELECT ON "a b\'; DROP"."x"".{y} %s ☃" TO alice'.replace("%s", "%%s"),
        *[],
    )
    job = site.value(
        "SELECT tensile_submit('vgg16', %s, target => 'la\"bel', model => %s)",
        '"a b\'; DROP"."x"".{y} %s ☃"',
        "mo'del\\ $$ {x} \n ☃",
        role="alice",
    )
    row = site.job(job)
    assert row["source_name"] == '"a b\'; DROP"."x"".{y} %s ☃"'
    assert (row["features"], row["target"]) == (["π {0} $1"], 'la"bel')
    assert row["model"] == "mo'del\\ $$ {x} \n ☃"


def test_the_source_is_found_in_the_callers_search_path(site):
    site.execute("CREATE SCHEMA mine; CREATE TABLE mine.images_table AS TABLE images_table")
    site.execute("GRANT USAGE ON SCHEMA mine TO alice; GRANT SELECT ON mine.images_table TO alice")
    with site.connect("alice") as connection:
        connection.execute("SET search_path = mine, public")
        by_name = connection.execute(SUBMIT).fetchone()["tensile_submit"]
        by_oid = connection.execute("SELECT tensile_submit('vgg16', 'images_table'::regclass)").fetchone()[
            "tensile_submit"
        ]
    assert site.job(by_name)["source_name"] == "mine.images_table"
    assert site.job(by_oid)["source_name"] == "mine.images_table"


def test_functions_and_operators_in_front_of_the_search_path_are_not_called(site):
    site.execute("CREATE SCHEMA trap AUTHORIZATION alice")
    with site.connect("alice") as connection:
        for function in ("to_regclass(text)", "jsonb_build_object(text, text)", "format(text, text)"):
            connection.execute(
                f"CREATE FUNCTION trap.{function} RETURNS text LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE 'trapped'; END $$"
            )
        connection.execute("SET search_path = trap, pg_catalog, public")
        job = connection.execute(SUBMIT).fetchone()["tensile_submit"]
    assert site.job(job)["source_name"] == "public.images_table"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_of_the_scheduler_can_be_named(site, policy):
    job = site.value("SELECT tensile_submit('vgg16', 'images_table', policy => %s)", policy, role="alice")
    assert site.value("SELECT policy FROM tensile.jobs WHERE id = %s", job) == policy


def test_the_policies_are_listed_for_users(site):
    known = site.execute("SELECT name FROM tensile.policies", role="alice")
    assert [row["name"] for row in known] == sorted(POLICIES)


def test_the_size_of_images_is_refused_for_arrays_that_are_none(site):
    site.execute("CREATE TABLE t AS SELECT ARRAY[1, 2, 3, 4] AS v, 1 AS label; GRANT SELECT ON t TO alice")
    submit = "SELECT tensile_submit('{}', 't', options => '{}')".format
    assert site.refusal(submit("mlp", '{"image_size": 8}')) == (
        "22023",
        'the option "image_size" is for images, and each element of the arrays is a feature',
        'Leave it out, or say what images they are by the option "raw_shape".',
    )
    for network, options in (
        ("mlp", '{"image_size": 8, "raw_shape": [2, 2]}'),
        ("vgg16", '{"image_size": 8}'),
    ):
        job = site.value(submit(network, options), role="alice")
        assert site.job(job)["features"] == ["v"]


def test_what_is_chosen_of_columns_that_nobody_named_is_told(site):
    submit = "SELECT tensile_submit('mlp', 'points', target => 'y'{})"
    with site.connect("alice") as connection:
        heard = heard_by(connection)
        for arguments in ("", ", features => '{a}'", ", features => '{note}'"):
            connection.execute(submit.format(arguments))
    (told,) = [said for said in heard if "features" in said]
    assert told == (
        'features are "a", "b", and not "note"; texts and times can be, where features names all columns to'
        " learn from"
    )
    (_, _, named) = site.execute("SELECT features FROM tensile.jobs ORDER BY id")
    assert named["features"] == ["note"]
