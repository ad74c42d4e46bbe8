"""What tensile_submit, and so tensile_train, refuses: with SQLSTATE, sentence and hint, leaving nothing."""

import psycopg
import pytest

from tensile_db.udf.options import TRAIN_ARGUMENTS

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"

REFUSALS = [
    (
        "'vgg61', 'images_table'",
        ("22023", 'unknown architecture "vgg61"', 'Did you mean "vgg16"?'),
    ),
    (
        "NULL, 'images_table'",
        ("22023", "the architecture is NULL", "Name one, e.g. 'resnet50'."),
    ),
    (
        "'vgg16', NULL",
        ("22023", "the source is NULL", "Name a table or view: 'schema.table'."),
    ),
    (
        "'vgg16', 'images_table', policy => 'AUTO'",
        ("22023", 'unknown policy "AUTO"', 'Did you mean "auto"?'),
    ),
    (
        "'vgg16', 'image_tables'",
        ("42P01", 'no table or view "image_tables"', "Did you mean public.images_table?"),
    ),
    (
        "'vgg16', 'nowhere.near'",
        ("42P01", 'no table or view "nowhere.near"', "Is its schema in your search_path?"),
    ),
    (
        "'vgg16', 4294967295::oid",
        ("42P01", "no table has the OID 4294967295", "Name it: 'schema.table'."),
    ),
    (
        "'vgg16', 'images_table_pkey'",
        (
            "22023",
            "public.images_table_pkey is no table but an index",
            "Give a table, a partitioned table or a view.",
        ),
    ),
    (
        "'vgg16', 'images_table', target => 'lable'",
        ("42703", 'public.images_table has no column "lable" to be the target', 'Did you mean "label"?'),
    ),
    (
        "'vgg16', 'images_table', features => '{photograph}'",
        (
            "42703",
            'public.images_table has no column "photograph" to be the feature',
            "It has: id, image, label.",
        ),
    ),
    (
        "'vgg16', 'images_table', features => '{image,image}'",
        ("22023", "features names a column twice", "Name each column once."),
    ),
    (
        "'vgg16', 'images_table', features => '{}'",
        ("22023", "features is empty", "Leave it out, or name at least one column."),
    ),
    (
        "'vgg16', 'images_table', features => '{label}'",
        ("22023", '"label" is both a feature and the target', "Leave it out of features."),
    ),
    (
        "'vgg16', 'images_table', features => '{image,id}'",
        (
            "22023",
            "a column of images or arrays cannot be combined with others: image, id",
            "Name one bytea or array column, or columns of numbers, texts and times.",
        ),
    ),
    (
        "'vgg16', 'images_table', target => 'image'",
        (
            "22023",
            'the target "image" is of type bytea, which is neither a label nor a number',
            "Name an integer, text, boolean or numeric column: target => '...'.",
        ),
    ),
    (
        "'vgg16', 'points', 'y', '{note}'",
        (
            "22023",
            'the architecture learns from images, and the column "note" of type text holds none',
            'Use the architecture "mlp", or name a column of type bytea or real[].',
        ),
    ),
    (
        "'mlp', 'pg_stat_activity', 'pid', '{client_addr}'",
        (
            "22023",
            'the feature "client_addr" is of type inet, which cannot be learned from',
            "Features are bytea, arrays, numbers, booleans, texts, enums or times.",
        ),
    ),
    (
        "'vgg16', 'points'",
        (
            "22023",
            "the architecture learns from images, and public.points has none",
            'Use the architecture "mlp" for numeric columns, or a column of type bytea or real[].',
        ),
    ),
    (
        "'vgg16', 'images_table', epochs => 0",
        (
            "22023",
            "epochs must be at least 1, got 0",
            "The default is 5: leave epochs out, or give a number from 1 to 2147483647.",
        ),
    ),
    (
        "'vgg16', 'images_table', batch_size => -3",
        (
            "22023",
            "batch_size must be at least 1, got -3",
            "The default is 32: leave batch_size out, or give a number from 1 to 2147483647.",
        ),
    ),
    (
        "'vgg16', 'images_table', optimizer => 'adan'",
        ("22023", 'unknown optimizer "adan"', 'Did you mean "adam" or "adamw"?'),
    ),
    (
        "'vgg16', 'images_table', policy => 'vanila'",
        ("22023", 'unknown policy "vanila"', 'Did you mean "vanilla"?'),
    ),
    (
        "'vgg16', 'images_table', learning_rate => 'NaN'",
        (
            "22023",
            "learning_rate must be above 0 and finite, got NaN",
            "Leave it out for this optimizer's default, 0.01.",
        ),
    ),
    (
        "'vgg16', 'images_table', learning_rate => 0",
        (
            "22023",
            "learning_rate must be above 0 and finite, got 0",
            "Leave it out for this optimizer's default, 0.01.",
        ),
    ),
    (
        "'vgg16', 'images_table', learning_rate => 1e300",
        (
            "22023",
            "learning_rate is beyond float32, got 1e+300",
            "Leave it out for this optimizer's default, 0.01.",
        ),
    ),
    (
        "'vgg16', 'images_table', features => ARRAY[NULL, 'image']",
        (
            "22023",
            "features has an element that is no column's name",
            "Give a list of names: features => '{a,b}'.",
        ),
    ),
    (
        "'vgg16', 'images_table', features => ARRAY[['image'], ['label']]",
        (
            "22023",
            "features has an element that is no column's name",
            "Give a list of names: features => '{a,b}'.",
        ),
    ),
    (
        "'vgg16', 'images_table', validation => 1",
        (
            "22023",
            "validation is a share of the rows, from 0 to below 1, got 1",
            "validation => 0.1 holds out every tenth row, 0 none.",
        ),
    ),
    (
        "'vgg16', 'images_table', memory_limit => 0",
        (
            "22023",
            "memory_limit must be above 0 bytes, got 0",
            "Leave it out for no limit of the job's own.",
        ),
    ),
    (
        "'vgg16', 'images_table', model => ' '",
        (
            "22023",
            "a model's name cannot be of spaces alone",
            "Leave it out for the architecture's, or choose one: model => '...'.",
        ),
    ),
    (
        "'vgg16', 'images_table', model => ''",
        (
            "22023",
            "a model's name cannot be empty",
            "Leave it out for the architecture's, or choose one: model => '...'.",
        ),
    ),
    (
        "'vgg16', 'images_table', model => repeat('m', 201)",
        (
            "22023",
            "a model's name cannot be longer than 200 characters, got 201",
            "Choose a shorter one: model => '...'.",
        ),
    ),
    (
        "'vgg16', 'images_table', learning_rate => -1e300",
        (
            "22023",
            "learning_rate must be above 0 and finite, got -1e+300",
            "Leave it out for this optimizer's default, 0.01.",
        ),
    ),
    (
        "'vgg16', 'SELECT * FROM images_table'",
        (
            "42P01",
            '"SELECT * FROM images_table" is a query, where the name of a table or view is wanted',
            "CREATE VIEW of the query, and give the view's name.",
        ),
    ),
    (
        "'vgg16', 'Images Table'",
        ("42P01", 'no table or view "Images Table"', "Did you mean public.images_table?"),
    ),
    (
        "'vgg16', 'My Own'",
        (
            "42P01",
            'no table or view "My Own"',
            """Write a name with capital letters or other signs in quotes: '"My table"'.""",
        ),
    ),
    (
        "'vgg16', 'a.b.c.d'",
        ("42P01", 'no table or view "a.b.c.d"', "Is its schema in your search_path?"),
    ),
]


@pytest.mark.parametrize(("arguments", "refusal"), REFUSALS)
def test_a_wrong_request_is_refused_with_a_hint_and_leaves_nothing(site, arguments, refusal):
    assert site.refusal(f"SELECT tensile_submit({arguments})") == refusal
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_an_error_carries_no_traceback(site):
    with pytest.raises(psycopg.Error) as caught:
        site.execute("SELECT tensile_submit('vgg61', 'images_table')", role="alice")
    assert "Traceback" not in str(caught.value.diag.context)


def test_without_architectures_the_hint_says_who_fills_the_list(site):
    site.execute("DELETE FROM tensile.architectures")
    assert site.refusal(SUBMIT) == (
        "22023",
        'unknown architecture "vgg16": the list of architectures is empty',
        "Start a worker, or run `tensile-db install` again: both fill it.",
    )


def test_every_argument_that_is_taken_for_an_option_is_told_from_one(site):
    names = site.value(
        "SELECT proargnames[1:pronargs] FROM pg_proc WHERE oid = 'tensile.tensile_train'::regproc"
    )
    assert {*TRAIN_ARGUMENTS, "options"} == set(names)
