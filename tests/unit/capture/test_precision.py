"""A step captured in bfloat16 equals eager PyTorch under autocast bit for bit."""

import pytest
import torch

from tensile_db.capture.fakes.cpu_layouts import CpuFakeMode
from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.precision import Precision, precision_of
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.graph import Role
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.timeline import simulate
from tests.examples import one_in
from tests.unit.capture.eager import CLASSES, SEED, assert_bitwise, assert_model_bitwise, batches
from tests.unit.capture.interpreter import Interpreter, same_bits
from tests.unit.capture.shared_layers import SharedAndGrouped

BFLOAT16 = Precision.BFLOAT16
aten = torch.ops.aten


def capture(precision, *, name="resnet10t", shape=(32, 3, 64, 64)):
    model = build(name, num_outputs=CLASSES, input_shape=shape[1:], seed=7)
    return capture_train_step(
        model, batch_shape=shape, target="classes", optimizer=configure("sgd"), precision=precision
    )


def images_of(graph):
    return [t.nbytes for t in graph.tensors if t.role is Role.ACTIVATION and t.shape[:1] == (32,)]


def vanilla_peak_nbytes(graph):
    spec = machine("sim:a6000")
    return simulate(graph, predict_latencies_ns(graph, spec), vanilla.plan_one(graph), spec).peak_nbytes


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_an_mlp_with_dropout_trains_in_bfloat16_bitwise_as_autocast(optimizer):
    options = {"hidden_units": [16, 8], "dropout": 0.3}
    walk = assert_bitwise("mlp", (6, 10), optimizer, options=options, strict=True, precision=BFLOAT16)
    assert walk.recomputed > 0
    assert {view.dtype for view in walk.step.state.values()} == {torch.float32}


def test_a_regression_trains_in_bfloat16_bitwise_as_autocast():
    assert_bitwise("mlp", (6, 10), "adam", target="values", strict=True, precision=BFLOAT16)


@pytest.mark.slow
def test_a_layer_that_is_used_three_times_is_cast_once_and_its_gradients_add_up_as_autocasts():
    torch.manual_seed(3)
    walk = assert_model_bitwise(SharedAndGrouped(), (6, 8), "adam", strict=True, precision=BFLOAT16)
    shared = walk.step.state["parameter/shared.weight"].tensor
    casts = [op for op in walk.step.graph.ops if "_to_copy" in op.target and shared in op.reads]
    assert len(casts) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    one_in(3, ["test_convnext", "resnet10t", "test_efficientnet", "test_vit", "test_maxvit", "levit_128s"]),
)
def test_every_op_of_a_network_in_bfloat16_keeps_its_promises(name):
    walk = assert_bitwise(name, (2, 3, 32, 32), "momentum", iterations=2, strict=True, precision=BFLOAT16)
    assert walk.recomputed > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet10t", pytest.param("test_vit", marks=pytest.mark.thorough)])
def test_a_forward_step_in_bfloat16_gives_autocasts_logits_as_float32(name):
    shape = (2, 3, 32, 32)
    model = build(name, num_outputs=CLASSES, input_shape=shape[1:], seed=7)
    step = capture_forward_step(model, shape, precision=BFLOAT16)
    walk = Interpreter(step, torch.Generator(), strict=True)
    walk.load_state(initial_state(model))
    ((features, _),) = batches(shape, "classes", 1)
    logits = walk.run(1, (features,))["logits"]
    assert step.outputs["logits"].dtype == torch.float32
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(logits, model.eval()(features).float())


@pytest.mark.slow
def test_casts_are_ops_and_activations_take_half_the_bytes():
    full, half = capture(Precision.FLOAT32).graph, capture(BFLOAT16).graph
    kept = [max(images_of(graph)) for graph in (full, half)]
    assert kept[0] == 2 * kept[1]
    assert not any(tensor.dtype == "bfloat16" for tensor in full.tensors)
    assert sum("_to_copy" in op.target for op in half.ops) > sum("_to_copy" in op.target for op in full.ops)
    assert all(t.dtype != "bfloat16" for t in half.tensors if t.persistent)
    assert vanilla_peak_nbytes(half) < 0.8 * vanilla_peak_nbytes(full)
    assert full.digest != half.digest


@pytest.mark.slow
def test_tf32_is_the_graph_of_float32_with_permission_to_compute_otherwise():
    full, tf32 = capture(Precision.FLOAT32), capture(Precision.TF32)
    assert full.graph.digest == tf32.graph.digest
    assert (full.tf32, tf32.tf32, capture(BFLOAT16).tf32) == (False, True, False)


@pytest.mark.slow
def test_a_step_in_bfloat16_gives_the_same_bits_run_twice():
    step = capture(BFLOAT16, shape=(2, 3, 32, 32))
    model = build("resnet10t", num_outputs=CLASSES, input_shape=(3, 32, 32), seed=7)
    data = list(batches((2, 3, 32, 32), "classes", 2))

    def final():
        walk = Interpreter(step, torch.Generator().manual_seed(SEED))
        walk.load_state(initial_state(model, configure("sgd")))
        for number, batch in enumerate(data, start=1):
            walk.run(number, batch)
        return walk.state()

    one, other = final(), final()
    assert [name for name in one if not same_bits(one[name], other[name])] == []


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, Precision.FLOAT32),
        ({"precision": None}, Precision.FLOAT32),
        ({"precision": "float32"}, Precision.FLOAT32),
        ({"precision": "tf32"}, Precision.TF32),
        ({"precision": "bf16"}, BFLOAT16),
        ({"precision": "bfloat16"}, BFLOAT16),
    ],
)
def test_a_jobs_options_say_its_precision(options, want):
    assert precision_of(options) is want


def _dtypes(results):
    return [None if result is None else result.dtype for result in results]


@pytest.mark.parametrize("of_parameters", [torch.float32, torch.bfloat16, None])
@pytest.mark.parametrize("training", [True, False])
def test_fake_normalizations_have_the_dtypes_of_the_processors(of_parameters, training):
    given = torch.ones(2, 4, 8, 8, dtype=torch.bfloat16)
    of_channels = None if of_parameters is None else torch.ones(4, dtype=of_parameters)
    of_rows = None if of_parameters is None else torch.ones(8, dtype=of_parameters)
    calls = [
        (
            aten.native_batch_norm.default,
            (given, *[of_channels] * 4, training or of_channels is None, 0.1, 1e-5),
        ),
        (aten.native_layer_norm.default, (given, [8], of_rows, of_rows, 1e-5)),
        (aten.native_group_norm.default, (given, of_channels, of_channels, 2, 4, 64, 2, 1e-5)),
    ]
    mode = CpuFakeMode(allow_non_fake_inputs=True)
    for function, args in calls:
        real = function(*args)
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        with mode:
            faked = function(*fakes)
        assert _dtypes(faked) == _dtypes(real), function
        if function is aten.native_group_norm.default:
            mask = [True, of_channels is not None, of_channels is not None]
            backward = (given, given, real[1], real[2], of_channels, 2, 4, 64, 2, mask)
            with mode:
                faked = aten.native_group_norm_backward.default(
                    *[mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in backward]
                )
            assert _dtypes(faked) == _dtypes(aten.native_group_norm_backward.default(*backward))
