import json

import pytest

from tensile_db.latency.model import from_json
from tensile_db.latency.training import errors_between, learn, train
from tests.graphs.hand_made_ops import DEVICE, KIND, lawful_ns, lawful_samples, made_up_op


@pytest.fixture(scope="module")
def trained():
    return train(lawful_samples(150), DEVICE, seed=1)


@pytest.fixture(scope="module")
def model(trained):
    return trained[0]


@pytest.mark.slow
def test_a_known_law_is_recovered_on_shapes_that_were_held_out(trained):
    _, errors = trained
    assert errors.sample_count == 62
    assert errors.r_squared > 0.9
    assert errors.r_squared_log > 0.98
    assert errors.median_relative_error < 0.15


@pytest.mark.parametrize(("rows", "columns", "stride"), [(16, 16, 1), (500, 40, 2), (600, 500, 1)])
def test_an_idle_and_a_busy_device_are_told_apart(model, rows, columns, stride):
    op = made_up_op(rows, columns, stride)
    for utilization in (0.0, 1.0):
        assert model.predict_ns([op], utilization)[0] == pytest.approx(lawful_ns(op, utilization), rel=0.2)


@pytest.mark.slow
def test_equal_samples_in_any_order_give_equal_models_and_another_seed_another():
    samples = lawful_samples(40)
    first, again, other = (
        train(in_order, DEVICE, seed=seed)[0].to_json()
        for in_order, seed in ((samples, 3), (samples[::-1], 3), (samples, 4))
    )
    assert first == again
    assert first != other


def test_too_few_shapes_make_no_model_and_still_scale_the_roofline():
    samples = lawful_samples(10)
    assert train(samples, DEVICE, seed=1) is None
    learned = learn(samples, DEVICE, seed=1)[KIND]
    assert learned.model.network is None
    assert learned.errors is None
    assert learned.sample_count == 20
    assert 1.5 < learned.model.roofline_scale < 3.0


@pytest.mark.slow
def test_a_disturbed_measurement_in_twenty_hardly_moves_the_model():
    samples = lawful_samples(150)
    disturbed = [
        sample
        if place % 20
        else type(sample)(
            features=sample.features, utilization=sample.utilization, latency_ns=50 * sample.latency_ns
        )
        for place, sample in enumerate(samples)
    ]
    trained, _ = train(disturbed, DEVICE, seed=1)
    ops = [sample.features for sample in samples if sample.utilization == 0.0]
    errors = errors_between(trained.predict_ns(ops, 0.0), [lawful_ns(op, 0.0) for op in ops])
    assert errors.median_relative_error < 0.15


def test_samples_of_an_older_naming_are_left_out():
    old = [
        type(sample)(
            features=type(sample.features)(kind=KIND, names=("a",), values=(1.0,), flops=1, moved_nbytes=1),
            utilization=0.0,
            latency_ns=5,
        )
        for sample in lawful_samples(5)
    ]
    assert learn([*old, *lawful_samples(30)], DEVICE, seed=1)[KIND].sample_count == 60


def test_progress_is_told_after_each_kind():
    told = []
    samples = [*lawful_samples(3), *lawful_samples(3, kind="aten.other.default")]
    learn(samples, DEVICE, seed=1, on_kind=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]


def test_a_stored_model_predicts_what_the_learned_one_does(model):
    stored = from_json(json.loads(json.dumps(model.to_json())))
    ops = [made_up_op(rows, 3 * rows, 2) for rows in (1, 10, 100)]
    assert stored.predict_ns(ops, 0.5) == model.predict_ns(ops, 0.5)
    assert stored.covers(ops, 0.5).tolist() == [True, True, True]


def test_a_model_of_another_format_is_no_model(model):
    assert from_json(model.to_json() | {"format": 2}) is None


def test_errors_are_those_of_the_formulas():
    errors = errors_between([1, 2, 8], [2, 2, 4])
    assert errors.r_squared == pytest.approx(1 - 17 / (8 / 3))
    assert errors.r_squared_log == pytest.approx(1 - 2 / (2 / 3))
    assert errors.median_relative_error == 0.5


def test_latencies_that_do_not_vary_have_no_share_of_variance():
    assert errors_between([3, 4], [4, 4]).r_squared is None
