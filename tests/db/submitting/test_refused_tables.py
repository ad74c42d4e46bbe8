"""Tables that tensile_submit, and so tensile_train, refuses to learn from."""

import psycopg
import pytest

_NO_FEATURES = (
    "Features are a bytea or numeric array column, or numeric columns; keys, texts and times"
    " are none, unless named: features => '{...}'."
)


@pytest.mark.parametrize(
    ("table", "refusal"),
    [
        (
            "(a int, b int)",
            (
                "42703",
                "public.t has no column named label, target, y or class",
                "Name the column to learn: target => '...'. It has: a, b.",
            ),
        ),
        (
            "()",
            (
                "42703",
                "public.t has no column named label, target, y or class",
                "Name the column to learn: target => '...'. It has no columns.",
            ),
        ),
        (
            "(a int, label int, y int)",
            (
                "42702",
                "several columns of public.t could be the target: label, y",
                "Name one: target => 'label'.",
            ),
        ),
        (
            "(left_image bytea, right_image bytea, label int)",
            (
                "22023",
                "public.t has several columns to learn from: left_image, right_image",
                "Name one: features => ARRAY['left_image'].",
            ),
        ),
        (
            "(id int, note text, label int)",
            (
                "42703",
                "public.t has no column to learn from",
                _NO_FEATURES,
            ),
        ),
        (
            "(image bytea, label int)",
            (
                "22000",
                "public.t has no rows",
                "Insert some; rows that a row-level security policy hides from you do not count.",
            ),
        ),
    ],
)
def test_a_table_that_cannot_be_learned_from_is_refused(site, table, refusal):
    site.execute(f"CREATE TABLE t {table}; GRANT SELECT ON t TO alice")
    assert site.refusal("SELECT tensile_submit('resnet50', 't')") == refusal
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_a_temporary_table_is_refused_for_no_worker_can_read_it(site):
    with site.connect("alice") as connection:
        connection.execute("CREATE TEMP TABLE t AS SELECT ''::bytea AS image, 1 AS label")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is a temporary table"):
            connection.execute("SELECT tensile_submit('vgg16', 't')")


def test_a_view_that_is_temporary_is_called_one(site):
    with site.connect("alice") as connection:
        connection.execute("CREATE TEMP VIEW v AS SELECT * FROM images_table")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is a temporary view") as caught:
            connection.execute("SELECT tensile_submit('vgg16', 'v')")
    assert caught.value.diag.message_hint.startswith("Make an ordinary view")
