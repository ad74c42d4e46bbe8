"""What SQL accepts and what the worker knows: udf/ imports neither capture nor data, so it has its own names.

Policies it has not: the view tensile.policies is made from the scheduler's.
"""

import pytest

from tensile_db.capture import optimizers, schedules
from tensile_db.capture.networks import architectures
from tensile_db.data import source as worker_source
from tensile_db.errors import InvalidRequest, UnknownName
from tensile_db.udf import columns, options, request, wait
from tensile_db.worker.config import WorkerConfig

OPTIMIZERS = sorted(request.OPTIMIZERS)

#: A value that each option of an optimizer may have.
VALUES = {
    "betas": [0.5, 0.9],
    "eps": 1e-3,
    "max_gradient_norm": 1.0,
    "momentum": 0.5,
    "weight_decay": 0.1,
}


def checked(given, *, optimizer="adam", kind="mlp"):
    return options.check_options(given, optimizer=optimizer, architecture="any", kind=kind)


def is_accepted(check, *arguments, **options):
    try:
        check(*arguments, **options)
    except InvalidRequest:
        return False
    return True


def test_both_know_the_same_optimizers():
    with pytest.raises(UnknownName) as refusal:
        optimizers.configure("none of them")
    assert refusal.value.known == tuple(OPTIMIZERS)


def test_both_know_the_same_schedules_of_learning_rates():
    with pytest.raises(UnknownName) as refusal:
        schedules.schedule_of("none of them", 0, epochs=1, updates_per_epoch=1)
    known = refusal.value.known
    assert all(is_accepted(checked, {"learning_rate_schedule": name}) for name in known)
    listed = ", ".join(f'"{name}"' for name in known[:-1])
    assert options.wanted_of("learning_rate_schedule") == f'either {listed} or "{known[-1]}"'


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_know_the_same_options_of_an_optimizer(optimizer):
    with pytest.raises(UnknownName) as refusal:
        optimizers.configure(optimizer, none_of_them=1)
    accepted = {
        name for name, value in VALUES.items() if is_accepted(checked, {name: value}, optimizer=optimizer)
    }
    # An argument of its own in SQL.
    assert accepted | {"learning_rate"} == set(refusal.value.known)


@pytest.mark.parametrize(
    ("optimizer", "option", "value"),
    [
        ("sgd", "momentum", 0),
        ("sgd", "momentum", 0.999),
        ("momentum", "weight_decay", 0),
        ("momentum", "weight_decay", 1000),
        ("adam", "betas", [0, 0]),
        ("adam", "betas", [0.999, 0.999]),
        ("adamw", "eps", 1e-300),
        ("adamw", "eps", 1),
        ("sgd", "max_gradient_norm", 1e-300),
        ("adam", "max_gradient_norm", 1e9),
    ],
)
def test_the_optimizer_takes_the_extremes_that_sql_accepts(optimizer, option, value):
    assert checked({option: value}, optimizer=optimizer) == {option: value}
    optimizers.configure(optimizer, **{option: value})


@pytest.mark.parametrize(
    ("architecture", "kind"), [("mlp", "mlp"), ("resnet50", "timm"), ("resnet", "alias")]
)
def test_both_know_the_same_options_of_an_architecture(architecture, kind):
    values = {"drop_path": 0.1, "dropout": 0.1, "hidden_units": [4]}
    assert set(values) == options.NETWORK_OPTIONS
    accepted = {name for name, value in values.items() if is_accepted(checked, {name: value}, kind=kind)}
    assert accepted == set(architectures.option_names(architecture))


def test_both_take_the_same_names_for_a_target_that_goes_without_saying():
    assert columns.TARGET_NAMES == worker_source.TARGET_NAMES


def test_the_backend_takes_a_worker_for_dead_when_its_lease_has_run_out():
    assert WorkerConfig(dsn="").lease_s == wait.LEASE_S
