import pytest

from tensile_db.latency.predictor import KindModel, predict
from tensile_db.latency.training import train
from tests.graphs.hand_made_ops import DEVICE, KIND, lawful_ns, lawful_samples, made_up_op


@pytest.fixture(scope="module")
def network():
    trained, _ = train(lawful_samples(150), DEVICE, seed=1)
    return trained


@pytest.fixture
def models(network):
    return {KIND: KindModel(network=network, roofline_scale=3.0)}


def test_without_models_the_roofline_stands():
    assert predict([made_up_op(10, 100)], {}, DEVICE, utilization=0.0).latencies_ns == (2000,)


def test_an_op_within_the_sampled_range_has_the_models_latency(models):
    op = made_up_op(100, 100)
    predicted = predict([op, op], models, DEVICE, utilization=0.0)
    assert predicted.learned_count == 2
    assert predicted.latencies_ns[0] == predicted.latencies_ns[1]
    assert predicted.latencies_ns[0] == pytest.approx(lawful_ns(op, 0.0), rel=0.2)


@pytest.mark.parametrize(
    ("op", "utilization"),
    [
        (made_up_op(4096, 100), 0.0),
        (made_up_op(100, 100, stride=3), 0.0),
        (made_up_op(100, 100), 1.1),
    ],
    ids=["a size beyond twice the largest", "a parameter never seen", "a load never seen"],
)
def test_outside_the_sampled_range_the_scaled_roofline_stands(models, op, utilization):
    predicted = predict([op], models, DEVICE, utilization=utilization)
    assert predicted.learned_count == 0
    assert predicted.latencies_ns == (3 * (1000 + op.moved_nbytes // 4),)


def test_a_size_up_to_twice_the_largest_is_within_the_range(models):
    assert predict([made_up_op(1500, 100)], models, DEVICE, utilization=0.0).learned_count == 1


def test_an_unknown_kind_has_the_roofline_by_the_usual_scale(models):
    others = {
        "a": KindModel(network=None, roofline_scale=1.0),
        "b": KindModel(network=None, roofline_scale=9.0),
    }
    op = made_up_op(10, 100, kind="aten.unheard_of.default")
    assert predict([op], models | others, DEVICE, utilization=0.0).latencies_ns == (6000,)


def test_features_named_otherwise_are_not_covered(models):
    op = made_up_op(100, 100)
    renamed = type(op)(
        kind=op.kind, names=op.names[1:], values=op.values[1:], flops=op.flops, moved_nbytes=op.moved_nbytes
    )
    assert predict([renamed], models, DEVICE, utilization=0.0).learned_count == 0


def test_predictions_stay_near_the_sampled_latencies(network):
    extreme = network.predict_columns_ns(network.high[None, :] + 1000.0)[0]
    least, most = 2 ** (network.least - 1), 2 ** (network.most + 1)
    assert least - 1 <= extreme <= most + 1
    assert extreme >= 1
