"""What tensile_submit, and so tensile_train, refuses: with SQLSTATE, sentence and hint, leaving nothing."""

import psycopg
import pytest

from tensile_db.udf.options import TRAIN_ARGUMENTS

SUBMIT = "SELECT tensile_submit('vgg16', 'images_table')"

_PRECISIONS = 'It is "float32", "tf32", "bfloat16" or "float16".'

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
            "Name one bytea or array column, or numeric columns alone.",
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
        "'mlp', 'points', features => '{note}'",
        (
            "22023",
            'the feature "note" is of type text, which cannot be learned from',
            "Features are bytea, arrays, numbers or booleans.",
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
        """'vgg16', 'images_table', options => '{"weight_decay": 1e308}'""",
        ("22023", 'option "weight_decay" cannot be 1e+308', "It is a number from 0 to 1000."),
    ),
    (
        """'vgg16', 'images_table', options => '{"checkpoint_seconds": 1e300}'""",
        ("22023", 'option "checkpoint_seconds" cannot be 1e+300', "It is a number above 0 to 1e+09."),
    ),
    (
        """'vgg16', 'images_table', options => '{"patience": 0}'""",
        ("22023", 'option "patience" cannot be 0', "It is a whole number from 1 to 2147483647."),
    ),
    (
        """'vgg16', 'images_table', options => '{"learning_rate_schedule": "step"}'""",
        (
            "22023",
            'option "learning_rate_schedule" cannot be "step"',
            'It is either "constant", "cosine" or "linear".',
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"warmup_epochs": -0.5}'""",
        ("22023", 'option "warmup_epochs" cannot be -0.5', "It is a number from 0 to 2.14748e+09."),
    ),
    (
        """'vgg16', 'images_table', epochs => 2, options => '{"warmup_epochs": 2.5}'""",
        (
            "22023",
            "the learning rate warms up for 2.5 epochs, and epochs is 2",
            'Let "warmup_epochs" be fewer, or epochs be more.',
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"class_weights": {"cat": 0}}'""",
        (
            "22023",
            'option "class_weights" cannot be {"cat": 0}',
            'It is "balanced", or an object that gives classes weights, each a number from 1e-09 to 1e+09.',
        ),
    ),
    (
        """'mlp', 'points', target => 'y', options => '{"class_weights": "balanced"}'""",
        (
            "22023",
            'the option "class_weights" is for classes, and the target "y" is a number',
            "Leave it out, or name another target.",
        ),
    ),
    (
        """'vgg16', 'images_table', validation => 0, options => '{"patience": 3}'""",
        (
            "22023",
            'with the option "patience" rows held out tell when to stop, and validation is 0',
            "validation => 0.1 holds out every tenth row; or leave out the option.",
        ),
    ),
    *(
        (
            f"'vgg16', 'images_table', options => '{options}'",
            ("22023", "options is no JSON object", "Write it as '{\"image_size\": 64}'."),
        )
        for options in ("0", "false", "[]")
    ),
    (
        """'vgg16', 'images_table', options => '{"imagesize": 32}'""",
        ("22023", 'unknown option "imagesize"', 'Did you mean "image_size"?'),
    ),
    (
        """'vgg16', 'images_table', options => '{"image_size": "big"}'""",
        ("22023", 'option "image_size" cannot be "big"', "It is a whole number from 1 to 8192."),
    ),
    (
        """'vgg16', 'images_table', optimizer => 'adam', options => '{"betas": [0.9]}'""",
        (
            "22023",
            'option "betas" cannot be [0.9]',
            "It is a list of 2, each a number from 0 to below 1.",
        ),
    ),
    (
        """'vgg16', 'images_table', optimizer => 'adam', options => '{"momentum": 0.9}'""",
        (
            "22023",
            'the optimizer "adam" has no option "momentum"',
            "Leave it out, or use optimizer => 'momentum'.",
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"precision": "bf17"}'""",
        (
            "22023",
            'option "precision" cannot be "bf17"',
            _PRECISIONS,
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"precision": {"float": 32}}'""",
        (
            "22023",
            'option "precision" cannot be {"float": 32}',
            _PRECISIONS,
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"memory_format": "nchw"}'""",
        (
            "22023",
            'option "memory_format" cannot be "nchw"',
            'It is either "contiguous" or "channels_last".',
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"batch_size": 8}'""",
        (
            "22023",
            '"batch_size" is an argument and no option',
            "Give it outside of options: batch_size => ...",
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"dropout": true}'""",
        ("22023", 'option "dropout" cannot be true', "It is a number from 0 to below 1."),
    ),
    (
        """'vgg16', 'images_table', options => '{"hidden_units": [8]}'""",
        (
            "22023",
            'the architecture "vgg16" has no option "hidden_units"',
            'Leave it out: it is for "mlp".',
        ),
    ),
    (
        """'mlp', 'points', 'y', options => '{"memory_format": "channels_last"}'""",
        (
            "22023",
            'the architecture "mlp" has no option "memory_format"',
            "Leave it out: it is for timm's networks.",
        ),
    ),
    (
        """'mlp', 'points', 'y', options => '{"image_size": 8}'""",
        (
            "22023",
            'the option "image_size" is for images, and the features are columns of numbers',
            "Leave it out, or name a column of images: features => '{...}'.",
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
    (
        "'vgg16', 'images_table', options => '[1]'",
        ("22023", "options is no JSON object", "Write it as '{\"image_size\": 64}'."),
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
