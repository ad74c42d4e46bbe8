"""The option `pretrained`: which weights a backend takes it for, what it refuses, and who may bring some."""

import psycopg
import pytest
from psycopg.types.json import Jsonb


def add_weights(site, name, architecture="vgg16", role=None):
    """Insert weights of one tensor as `tensile-db import-weights` would; return their id."""
    weights = site.value(
        "INSERT INTO tensile.pretrained_weights (name, architecture, height, width, mean, scale, nbytes)"
        " VALUES (%s, %s, 224, 224, '{1, 2, 3}', '{4, 5, 6}', 4) RETURNING id",
        name,
        architecture,
        role=role,
    )
    site.execute(
        "INSERT INTO tensile.pretrained_tensors"
        " VALUES (%s, 'parameter/w', 0, 'float32', '{1}', '\\x00000000')",
        weights,
        role=role,
    )
    return weights


def call(pretrained, *, architecture="vgg16", source="images_table", **options):
    options = Jsonb({"pretrained": pretrained} | options)
    return "SELECT tensile_submit(%s, %s, options => %s)", architecture, source, options


def submitted(site, pretrained, **request):
    return site.job(site.value(*call(pretrained, **request), role="bob"))


def test_true_means_the_only_ones_of_the_architecture(site):
    weights = add_weights(site, "vgg16_imagenet")
    add_weights(site, "others", architecture="resnet50")
    row = submitted(site, True)
    assert (row["pretrained_id"], row["initial_model_id"]) == (weights, None)
    # Which they were is kept with the model.
    assert row["options"] == {"pretrained": "vgg16_imagenet"}
    assert row["model"] == "vgg16"


def test_an_alias_of_the_architecture_is_as_good(site):
    weights = add_weights(site, "inception", architecture="inception_v3")
    assert submitted(site, True, architecture="inceptionv3")["pretrained_id"] == weights


@pytest.mark.parametrize("pretrained", [False, None])
def test_without_it_a_training_starts_anew(site, pretrained):
    add_weights(site, "vgg16")
    assert submitted(site, pretrained)["pretrained_id"] is None


def test_hostile_names_are_names(site):
    name = """a"b'c\\d%s{x}"""
    weights = add_weights(site, name)
    row = submitted(site, name)
    assert (row["pretrained_id"], row["options"]["pretrained"]) == (weights, name)


def test_trials_of_a_search_start_from_them_too(site):
    weights = add_weights(site, "vgg16")
    search = site.value(
        "SELECT tensile_submit_search('vgg16', 'images_table', %s, options => %s)",
        Jsonb({"dropout": {"low": 0, "high": 0.5}}),
        Jsonb({"pretrained": True, "freeze_backbone": True}),
        role="bob",
    )
    row = site.job(search)
    assert (row["pretrained_id"], row["options"]) == (
        weights,
        {"pretrained": "vgg16", "freeze_backbone": True},
    )


def test_the_architecture_does_not_vary_then(site):
    add_weights(site, "vgg16")
    found = site.refusal(
        "SELECT tensile_submit_search(NULL, 'images_table', %s, options => %s)",
        Jsonb({"architecture": {"choices": ["vgg16", "resnet50"]}}),
        Jsonb({"pretrained": True}),
        role="bob",
    )
    assert found[0] == "22023"
    assert '"architecture" is that of the pretrained weights' in found[1]


@pytest.mark.parametrize(
    ("pretrained", "request_", "sqlstate", "message", "hint"),
    [
        (
            True,
            {"architecture": "inceptionv3"},
            "42704",
            'there are no pretrained weights of the architecture "inceptionv3"',
            "tensile-db import-weights inceptionv3 FILE",
        ),
        (
            True,
            {"architecture": "resnet50"},
            "42702",
            'several pretrained weights are of the architecture "resnet50": "one", "two"',
            'Name one: "pretrained": "..."',
        ),
        ("vgg", {}, "42704", 'no pretrained weights "vgg"', 'Did you mean "vgg16"?'),
        ("zz", {}, "42704", 'no pretrained weights "zz"', "tensile.pretrained_weights"),
        (
            "one",
            {},
            "22023",
            'the pretrained weights "one" are of the architecture "resnet50", and a network "vgg16" cannot',
            "Give 'resnet50' as the architecture",
        ),
        ("", {}, "22023", 'option "pretrained" cannot be ""', "It is true or false, or a text."),
        (1, {}, "22023", 'option "pretrained" cannot be 1', "It is true or false, or a text."),
        (
            True,
            {"architecture": "mlp", "source": "points"},
            "22023",
            'the architecture "mlp" has no option "pretrained"',
            "it is for timm's networks",
        ),
        (
            True,
            {"architecture": "theirs"},
            "22023",
            'the architecture "theirs" has no option "pretrained"',
            "it is for timm's networks",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(site, pretrained, request_, sqlstate, message, hint):
    add_weights(site, "vgg16")
    add_weights(site, "one", architecture="resnet50")
    add_weights(site, "two", architecture="resnet50")
    found = site.refusal(*call(pretrained, **request_), role="bob")
    assert found[0] == sqlstate
    assert message in found[1]
    assert hint in found[2]
    assert site.value("SELECT count(*) FROM tensile.jobs") == 0


def test_a_training_starts_from_a_model_or_from_these(site):
    add_weights(site, "vgg16")
    site.execute(
        "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, classes, features,"
        " target, parameter_nbytes)"
        " SELECT 'm', 1, oid, rolname, 'vgg16', 'classification', '[]', %s, 'label', 4"
        " FROM pg_roles WHERE rolname = 'bob'",
        Jsonb({"columns": ["image"], "kind": "image"}),
    )
    found = site.refusal(*call(True, start_from="m"), role="bob")
    assert found[:2] == (
        "22023",
        'the options "start_from" and "pretrained" both say which weights a training starts from',
    )


def test_layers_that_have_learned_nothing_are_not_frozen(site):
    add_weights(site, "vgg16")
    found = site.refusal(*call(False, freeze_backbone=True), role="bob")
    assert found[0] == "22023"
    assert 'with "freeze_backbone" all layers but the last one stay as they are' in found[1]
    assert '"pretrained" or "start_from"' in found[2]
    assert submitted(site, True, freeze_backbone=True)["options"]["freeze_backbone"] is True


@pytest.mark.parametrize(
    ("architecture", "value", "message", "hint"),
    [
        ("vgg16", "yes", 'option "freeze_backbone" cannot be "yes"', "It is true or false."),
        (
            "theirs",
            True,
            'the architecture "theirs" has no option "freeze_backbone"',
            """it is for timm's networks and "mlp".""",
        ),
    ],
)
def test_what_cannot_be_frozen_is_refused(site, architecture, value, message, hint):
    found = site.refusal(*call(None, architecture=architecture, freeze_backbone=value), role="bob")
    assert found[0] == "22023"
    assert message in found[1]
    assert hint in found[2]


def test_administrators_bring_and_drop_them_and_all_may_use_them(site):
    add_weights(site, "vgg16", role="carol")
    assert site.value("SELECT imported_by FROM tensile.pretrained_weights") == "carol"
    for role in ("alice", "carol"):
        assert site.value("SELECT count(*) FROM tensile.pretrained_tensors", role=role) == 1
    own = (
        "(name, architecture, height, width, mean, scale, nbytes) VALUES ('w', 'vgg16', 1, 1, '{}', '{}', 1)"
    )
    of_the_others = "SELECT id, 'x', 0, 'float32', '{1}', '' FROM tensile.pretrained_weights"
    for statement in (
        f"INSERT INTO tensile.pretrained_weights {own}",
        f"INSERT INTO tensile.pretrained_tensors {of_the_others}",
        "UPDATE tensile.pretrained_weights SET mean = '{}'",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            site.execute(statement, role="alice")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            site.execute(statement, role="puppet_login")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        site.execute("DELETE FROM tensile.pretrained_weights", role="alice")
    site.execute("DELETE FROM tensile.pretrained_weights WHERE name = 'vgg16'", role="carol")
    assert site.value("SELECT count(*) FROM tensile.pretrained_tensors") == 0
