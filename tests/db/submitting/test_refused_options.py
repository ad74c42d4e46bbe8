"""Options that tensile_submit, and so tensile_train, refuses: with SQLSTATE, sentence and hint."""

import pytest

_PRECISIONS = 'It is "float32", "tf32", "bfloat16" or "float16".'

REFUSALS = [
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
        ("22023", 'option "warmup_epochs" cannot be -0.5', "It is a number from 0 to 1e+09."),
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
        """'vgg16', 'images_table', options => '{"augmentation": {"flip": true}}'""",
        (
            "22023",
            'option "augmentation" cannot be {"flip": true}',
            "It is an object with some of horizontal_flip, random_crop_padding, random_resized_crop_area.",
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"augmentation": {}}'""",
        (
            "22023",
            'option "augmentation" cannot be {}',
            "It is an object with some of horizontal_flip, random_crop_padding, random_resized_crop_area.",
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"augmentation": {"random_resized_crop_area": 0}}'""",
        (
            "22023",
            'option "augmentation" cannot be {"random_resized_crop_area": 0}',
            'It is an object whose "random_resized_crop_area" is a number above 0 to 1.',
        ),
    ),
    (
        """'mlp', 'points', 'y', options => '{"augmentation": {"random_crop_padding": 2}}'""",
        (
            "22023",
            (
                'the option "augmentation" is for images, and the features are columns of numbers, texts or'
                " times"
            ),
            "Leave it out, or name a column of images: features => '{...}'.",
        ),
    ),
    (
        """'vgg16', 'images_table', options => '{"nulls": "impute"}'""",
        (
            "22023",
            'the option "nulls" is for columns of numbers, texts and times, and the features are images',
            "Leave it out.",
        ),
    ),
    (
        """'mlp', 'points', target => 'y', options => '{"nulls": "mean"}'""",
        ("22023", 'option "nulls" cannot be "mean"', 'It is either "refuse" or "impute".'),
    ),
    (
        """'mlp', 'points', target => 'y', options => '{"class_weights": "balanced"}'""",
        (
            "22023",
            'the option "class_weights" is for classes, and of the target "y" a number is learned',
            "Leave it out, or name another target.",
        ),
    ),
    (
        """'mlp', 'points', 'id', '{a}', options => '{"task": "regression", "class_weights": "balanced"}'""",
        (
            "22023",
            'the option "class_weights" is for classes, and of the target "id" a number is learned',
            'Leave it out, or the option "task", or name another target.',
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
            'the option "image_size" is for images, and the features are columns of numbers, texts or times',
            "Leave it out, or name a column of images: features => '{...}'.",
        ),
    ),
    (
        "'vgg16', 'images_table', options => '[1]'",
        ("22023", "options is no JSON object", "Write it as '{\"image_size\": 64}'."),
    ),
]


@pytest.mark.parametrize(("arguments", "refusal"), REFUSALS)
def test_wrong_options_are_refused_with_a_hint_and_leave_nothing(site, arguments, refusal):
    assert site.refusal(f"SELECT tensile_submit({arguments})") == refusal
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0
