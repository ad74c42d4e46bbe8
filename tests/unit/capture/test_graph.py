"""What ops read, write and make, on modules small enough to say it by hand."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import RandomSource
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import InvalidRequest
from tensile_db.graph import Phase, Role
from tests.unit.capture.interpreter import Interpreter, same_bits


def captured(model, shape=(4, 6), *, optimizer="sgd", target="classes", **more):
    return capture_train_step(model, batch_shape=shape, target=target, optimizer=configure(optimizer), **more)


def ops_of(step, target):
    return [op for op in step.graph.ops if op.target == target]


def named(step, tensors):
    return [step.graph.tensors[tensor].name for tensor in tensors]


class Views(nn.Module):
    """One storage: a linear's result, seen as two halves, one of which is changed in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 8)

    def forward(self, x):
        y = self.linear(x)
        left, right = y[:, :4], y[:, 4:]
        return left + right.relu_()


def test_views_are_no_ops_and_in_place_results_keep_their_storage():
    step = captured(Views())
    (linear,) = ops_of(step, "aten.addmm.default")
    (relu,) = ops_of(step, "aten.relu_.default")
    (total,) = [op for op in ops_of(step, "aten.add.Tensor") if op.phase == Phase.FORWARD]
    assert relu.reads == relu.writes == linear.writes
    assert total.reads == linear.writes
    assert relu.recomputable
    left, right = step.calls[total.id].args
    assert (left.offset, right.offset) == (0, 4)
    assert left.stride == right.stride == (8, 1)
    assert not [op for op in step.graph.ops if "split" in op.target or "view" in op.target]


def test_the_batch_comes_first_and_the_loss_is_reported_last():
    step = captured(nn.Linear(6, 3))
    first, last = step.graph.ops[0], step.graph.ops[-1]
    assert (first.target, named(step, first.writes)) == ("tensile.load_batch", ["features", "target"])
    assert (last.target, last.reads) == ("tensile.report", (step.outputs["loss"].tensor,))
    assert not first.recomputable
    assert not last.recomputable
    assert [step.graph.tensors[view.tensor].role for view in step.inputs] == [Role.INPUT, Role.INPUT]
    assert step.graph.tensors[step.outputs["loss"].tensor].role == Role.OUTPUT


def test_phases_come_in_order_and_gradients_are_what_the_optimizer_reads():
    step = captured(nn.Linear(6, 3))
    phases = [op.phase for op in step.graph.ops]
    assert phases == sorted(phases, key=[Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER].index)
    updates = [op for op in step.graph.ops if op.phase == Phase.OPTIMIZER and op.writes]
    assert [named(step, op.writes) for op in updates] == [["parameter/weight"], ["parameter/bias"]]
    roles = [step.graph.tensors[tensor].role for op in updates for tensor in op.reads]
    assert roles == [Role.PARAMETER, Role.GRADIENT, Role.PARAMETER, Role.GRADIENT]


def test_an_update_of_persistent_state_is_not_recomputable():
    step = captured(nn.Linear(6, 3), optimizer="adam")
    persistent = {tensor.id for tensor in step.graph.tensors if tensor.persistent}
    writers = [op for op in step.graph.ops if persistent & set(op.writes)]
    assert len(writers) == 8  # lerp_, mul_, addcmul_ and addcdiv_ for weight and bias
    assert not any(op.recomputable for op in writers)


def batch_normed():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))


def test_a_batch_norm_writes_its_statistics_though_its_schema_does_not_say_so():
    step = captured(batch_normed())
    (norm,) = ops_of(step, "aten.native_batch_norm.default")
    statistics = ["buffer/1.running_mean", "buffer/1.running_var"]
    assert [name for name in named(step, norm.writes) if name.startswith("buffer/")] == statistics
    (count,) = [op for op in step.graph.ops if named(step, op.writes) == ["buffer/1.num_batches_tracked"]]
    assert (count.target, count.recomputable) == ("aten.add_.Tensor", False)


def test_recomputing_a_batch_norm_leaves_its_statistics_alone_and_gives_the_same_bits():
    # Nothing learned, so that the step's values are still there at its end.
    config = configure("sgd", learning_rate=0.0)
    step = capture_train_step(batch_normed(), batch_shape=(4, 6), target="classes", optimizer=config)
    (norm,) = ops_of(step, "aten.native_batch_norm.default")
    call = step.calls[norm.id]
    assert norm.recomputable
    assert call.recompute_args == (*call.args[:3], None, None, *call.args[5:])
    walk = Interpreter(step, torch.Generator(), strict=True)
    walk.load_state(initial_state(batch_normed(), config))
    walk.run(1, (torch.randn(4, 6), torch.tensor([0, 1, 2, 0])))
    statistics = [walk.view(step.state[f"buffer/1.{name}"]) for name in ("running_mean", "running_var")]
    before = [value.clone() for value in statistics]
    made = [walk.view(view).clone() for view in call.outputs]
    again = walk.compute(call, call.recompute_args, {})
    assert all(same_bits(one, other) for one, other in zip(made, again, strict=True))
    assert all(same_bits(one, other) for one, other in zip(before, statistics, strict=True))
    walk.compute(call, call.args, {})
    assert not any(same_bits(one, other) for one, other in zip(before, statistics, strict=True))


def test_a_batch_norm_in_evaluation_writes_nothing_persistent():
    step = capture_forward_step(batch_normed(), (4, 6))
    (norm,) = ops_of(step, "aten.native_batch_norm.default")
    assert [name for name in named(step, norm.writes) if name.startswith("buffer/")] == []
    assert step.calls[norm.id].recompute_args is None


def test_dropout_draws_from_the_jobs_generator_and_is_not_recomputable():
    step = captured(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)))
    (draw,) = ops_of(step, "aten.bernoulli_.float")
    call = step.calls[draw.id]
    assert call.kwargs["generator"] == RandomSource()
    assert not call.draws_from_default_generator
    assert not draw.recomputable


def test_a_random_op_without_a_generator_argument_draws_from_the_default_one():
    class Noisy(nn.Linear):
        def forward(self, x):
            kept, _ = torch.native_dropout(super().forward(x), 0.5, True)
            return kept

    step = captured(Noisy(6, 3))
    (draw,) = ops_of(step, "aten.native_dropout.default")
    assert step.calls[draw.id].draws_from_default_generator
    assert not draw.recomputable


def test_dropouts_mask_does_not_depend_on_the_value_that_it_masks():
    step = captured(nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)))
    (mask,) = ops_of(step, "aten.empty_strided.default")
    assert mask.reads == ()


class Shared(nn.Module):
    """A value used three times, whose gradients autograd adds up."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        y = self.linear(x)
        return y.sigmoid() + y.tanh() + y.exp()


def test_gradients_are_added_up_in_place_as_eager_does():
    step = captured(Shared())
    backward = [op for op in step.graph.ops if op.phase == Phase.BACKWARD]
    assert [op.target for op in backward if op.target.startswith("aten.add")] == ["aten.add_.Tensor"] * 2
    assert all(set(op.writes) <= set(op.reads) for op in backward if op.target == "aten.add_.Tensor")


class Wasteful(nn.Module):
    """Draws, counts, and computes what nobody needs."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        torch.rand(2)
        self.calls.add_(1)
        x.exp().sum()
        return self.linear(x)


def test_only_ops_that_nobody_needs_are_dropped():
    targets = [op.target for op in captured(Wasteful()).graph.ops if op.phase == Phase.FORWARD]
    assert "aten.rand.default" in targets
    assert "aten.add_.Tensor" in targets
    assert "aten.exp.default" not in targets


class Rebinding(nn.Module):
    """Binds its buffer to a new tensor instead of updating it, and hangs a value on itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        y = self.linear(x)
        self.mean = y.detach().mean(0)
        self.last = y
        return y


def test_a_buffer_that_is_bound_anew_is_still_updated():
    step = captured(Rebinding())
    walk = Interpreter(step, torch.Generator(), strict=True)
    model = Rebinding()
    walk.load_state(initial_state(model, configure("sgd")))
    features = torch.randn(4, 6)
    walk.run(1, (features, torch.tensor([0, 1, 2, 0])))
    model(features)
    assert same_bits(walk.state()["buffer/mean"], model.mean)


def test_a_model_is_left_as_it_was():
    model = Rebinding().eval()
    before = dict(model.__dict__)
    parameters = dict(model.named_parameters())
    captured(model)
    assert model.__dict__ == before
    assert not model.training
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    assert not any(isinstance(tensor, FakeTensor) for tensor in model.state_dict().values())


def test_a_module_shared_under_two_names_is_one_and_is_restored():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    step = captured(model)
    assert list(step.state) == ["parameter/0.weight", "parameter/0.bias"]
    assert not any(isinstance(parameter, FakeTensor) for parameter in model[2].parameters())


def test_a_frozen_parameter_is_neither_updated_nor_given_optimizer_state():
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    step = captured(model, optimizer="adam")
    assert list(step.state) == list(initial_state(model, configure("adam")))
    assert not [name for name in step.state if name.startswith("optimizer_state/0.")]
    frozen = step.state["parameter/0.weight"].tensor
    assert not [op for op in step.graph.ops if frozen in op.writes]


class WithConstant(nn.Module):
    """Uses a tensor that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.scale = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        return self.linear(x) * self.scale + torch.tensor([4.0, 5.0, 6.0])


def test_constants_of_the_models_code_are_part_of_the_step():
    model = WithConstant()
    step = capture_forward_step(model, (4, 6))
    walk = Interpreter(step, torch.Generator(), strict=True)
    walk.load_state(initial_state(model))
    features = torch.randn(4, 6)
    with torch.no_grad():
        assert same_bits(walk.run(1, (features,))["logits"], model(features))


def test_sizes_flops_and_bytes_moved_are_counted():
    step = captured(nn.Linear(6, 3))
    (linear,) = ops_of(step, "aten.addmm.default")
    # 4 x 6 by 6 x 3, each multiply-add counted twice.
    assert linear.flops == 2 * 4 * 6 * 3
    # bias, features, weight and the result, 4 bytes each.
    assert linear.moved_nbytes == 4 * (3 + 24 + 18 + 12)
    (made,) = linear.writes
    tensor = step.graph.tensors[made]
    assert (tensor.nbytes, tensor.dtype, tensor.shape) == (48, "float32", (4, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet10t", "test_vit"])
def test_the_same_model_gives_the_same_digest_and_another_batch_another(name):
    shape = (3, 32, 32)
    one, same = (build(name, num_outputs=3, input_shape=shape, seed=seed) for seed in (0, 1))
    digest = captured(one, (2, *shape)).graph.digest
    assert captured(same, (2, *shape)).graph.digest == digest
    assert captured(one, (2, *shape)).graph.digest == digest
    assert captured(one, (3, *shape)).graph.digest != digest


class Deciding(nn.Linear):
    """Decides by a value."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (Deciding(6, 3), (4, 6), "the architecture depends on its tensors' values"),
        (nn.Linear(6, 3), (4, 5), "the architecture cannot run on batches of 4 x 5"),
        (nn.Linear(6, 3), (4, 2, 6), "does not return one row of outputs"),
        (nn.LSTM(6, 3), (4, 6), "does not return one row of outputs"),
    ],
)
def test_a_model_that_cannot_be_captured_is_refused(model, shape, message):
    with pytest.raises(InvalidRequest, match=message):
        captured(model, shape)


def test_a_numeric_target_needs_one_output():
    with pytest.raises(InvalidRequest, match="a numeric target needs one output, but the model has 3"):
        captured(nn.Linear(6, 3), target="values")


@pytest.mark.parametrize(
    ("asked_for", "target", "message"),
    [
        (2, "classes", r"^the architecture returns 3 outputs a row, 2 were asked for$"),
        (5, "classes", r"^the architecture returns 3 outputs a row, 5 were asked for$"),
        (1, "values", r"^the architecture returns 3 outputs a row, 1 was asked for$"),
    ],
)
def test_a_model_with_another_number_of_outputs_than_was_asked_for_is_refused(asked_for, target, message):
    with pytest.raises(InvalidRequest, match=message):
        captured(nn.Linear(6, 3), target=target, num_outputs=asked_for)
    with pytest.raises(InvalidRequest, match=message):
        capture_forward_step(nn.Linear(6, 3), (4, 6), num_outputs=asked_for)


@pytest.mark.parametrize(
    ("model", "returned"),
    [
        (nn.Flatten(0), r"a tensor of shape \(24,\) for 4 rows"),
        (nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)), r"a tensor of shape \(12,\) for 4 rows"),
        (nn.LSTM(6, 3), "a tuple for 4 rows"),
    ],
)
def test_what_is_no_row_for_each_is_refused_with_what_it_is(model, returned):
    with pytest.raises(InvalidRequest, match=returned):
        captured(model)
    with pytest.raises(InvalidRequest, match=returned):
        capture_forward_step(model, (4, 6), num_outputs=3)
