import pytest
import torch

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure, scalars_of, slots
from tensile_db.capture.state import initial_state
from tensile_db.errors import InvalidRequest, UnknownName


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("sgd", ()),
        ("momentum", ("momentum_buffer",)),
        ("adam", ("exp_avg", "exp_avg_sq")),
        ("adamw", ("exp_avg", "exp_avg_sq")),
    ],
)
def test_each_optimizer_keeps_its_state(name, kept):
    assert slots(configure(name)) == kept


def test_defaults_are_those_of_torch_optim():
    assert configure("momentum").momentum == 0.9
    assert configure("adam").weight_decay == 0.0
    assert configure("adamw").weight_decay == 0.01
    assert configure("adam", learning_rate=None).learning_rate == 0.001


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adma", {}, 'unknown optimizer "adma"'),
        ("sgd", {"betas": (0.9, 0.999)}, 'unknown option of optimizer sgd "betas"'),
        ("sgd", {"learning_rate": -1.0}, "optimizer sgd: learning_rate is -1.0"),
        ("sgd", {"learning_rate": float("nan")}, "optimizer sgd: learning_rate is nan"),
        ("sgd", {"learning_rate": True}, "optimizer sgd: learning_rate is True"),
        ("sgd", {"momentum": 1.0}, "optimizer sgd: momentum is 1.0"),
        ("adam", {"betas": (0.9, 1.0)}, r"optimizer adam: betas is \(0.9, 1.0\)"),
        ("adam", {"betas": 0.9}, "optimizer adam: betas is 0.9"),
    ],
)
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(InvalidRequest, match=message):
        configure(name, **options)


def test_an_unknown_optimizer_suggests_the_nearest():
    with pytest.raises(UnknownName) as raised:
        configure("adma")
    assert '"adam"' in raised.value.hint


def test_adams_first_step_undoes_the_bias_of_its_averages():
    scalars = scalars_of(configure("adam", learning_rate=0.5, betas=(0.5, 0.75)))(1)
    assert scalars == {"negative_step_size": -1.0, "bias_correction2_sqrt": 0.5}


def test_momentum_starts_as_minus_zero_and_adams_averages_as_zero():
    model = build("mlp", num_outputs=2, input_shape=(3,), seed=0)
    momentum = initial_state(model, configure("momentum"))["optimizer_state/1.weight/momentum_buffer"]
    assert torch.equal(momentum, torch.zeros(128, 3))
    assert bool(momentum.signbit().all())
    average = initial_state(model, configure("adam"))["optimizer_state/1.weight/exp_avg"]
    assert not bool(average.signbit().any())


def test_the_state_is_a_copy():
    model = build("mlp", num_outputs=2, input_shape=(3,), seed=0)
    initial_state(model)["parameter/1.bias"].fill_(9.0)
    assert not bool((model[1].bias == 9.0).any())
