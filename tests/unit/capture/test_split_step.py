"""Steps run in parts: every value but gradients of weights, and what follows from them, keeps its bits."""

import functools
from dataclasses import replace
from itertools import product

import pytest
import timm
import torch
from hypothesis import HealthCheck, event, given
from hypothesis import strategies as st

from tensile_db.capture.precision import Precision
from tensile_db.capture.splitting.split_step import split_step
from tensile_db.graph import Axis
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.policies.vanilla import plan_one
from tensile_db.scheduler.splitting.pieces import Copy
from tensile_db.scheduler.splitting.split_graph import split_graph
from tensile_db.scheduler.splitting.ways import find_splitting
from tests.examples import examples, one_in
from tests.steps.bitwise_runs import CLASSES, Training, capture_once
from tests.steps.small_networks import seeded, training_of, with_channels_last, with_frozen_backbone
from tests.steps.split_values import (
    Tolerances,
    differing_tensors,
    made_of,
    run_all,
    split_of_everything,
    summed_tensors,
    whole_values,
)

#: Left out of `make check`.
pytestmark = pytest.mark.slow

CPU = torch.device("cpu")

NETWORKS = [
    "mlp",
    "vgg with dropout",
    "resnet",
    "resnet, channels last",
    "vit",
    "efficientnet",
    "transformer",
    "gcn",
    "norm first",
]


def efficientnet():
    """With depthwise convolutions, attention to channels, and batch norm of single pixels."""
    return seeded(lambda: timm.create_model("test_efficientnet", num_classes=5))


def training_for(network):
    if network == "efficientnet":
        return Training(build=efficientnet, shape=(8, 3, 32, 32), optimizer="momentum")
    if network == "resnet, channels last":
        return with_channels_last(training_of("resnet", "momentum", 8))
    return training_of(network, "momentum", 64 if network == "gcn" else 8)


def gradients_of_convolutions_weights(step):
    return {
        view.tensor
        for call in step.calls
        if call.function is torch.ops.aten.convolution_backward.default
        for view in call.outputs[1:]
        if view is not None
    }


def compare(network, axis, parts, seen=lambda call, args: None, precision=Precision.FLOAT32):
    """Return the captured step, its splits, storages of both runs, and the tensors that differ."""
    training = replace(training_for(network), precision=precision)
    step, state = capture_once(training)
    splits = split_of_everything(step.graph, axis, parts)
    (batch,) = training.batches()[:1]
    whole = run_all(step, state, batch, seen)
    in_parts = run_all(split_step(step, splits, CPU), state, batch)
    return step, splits, whole, in_parts, differing_tensors(step, splits, whole, in_parts)


@pytest.mark.parametrize(("network", "parts"), one_in(3, product(NETWORKS, [2, 3])))
def test_along_the_batch_only_gradients_of_weights_change_and_within_the_tolerance(
    one_thread, network, parts
):
    graph = capture_once(training_for(network))[0].graph
    tolerances = Tolerances(summed_tensors(graph, split_of_everything(graph, Axis.BATCH, parts)))
    step, splits, whole, in_parts, different = compare(network, Axis.BATCH, parts, tolerances.seen)
    sums = summed_tensors(graph, splits)
    assert different
    assert set(different) <= made_of(graph, sums)
    own = split_graph(graph, splits).whole
    made = {view.tensor: view for call in step.calls for view in call.outputs if view is not None}
    for tensor in sums:
        view = made[tensor]
        got, want = (
            torch.empty(0).set_(storage, view.offset, view.size, view.stride)
            for storage in (in_parts[own[tensor]], whole[tensor])
        )
        assert bool(((got - want).abs() <= tolerances.of[tensor]).all()), graph.tensors[tensor].name


@pytest.mark.parametrize(("network", "parts"), one_in(3, product(NETWORKS, [2, 3])))
def test_along_channels_only_gradients_of_convolutions_weights_may_change(one_thread, network, parts):
    step, splits, _, _, different = compare(network, Axis.CHANNEL, parts)
    assert splits
    assert set(different) <= made_of(step.graph, gradients_of_convolutions_weights(step))


#: Long sums, which BLAS adds up in blocks, and channels that lie side by side.
WIDE = {
    "long products": ((16, 2048), lambda: torch.nn.Linear(2048, 1000)),
    "channels side by side": (
        (8, 3, 32, 32),
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 40, 3), SideBySide(40), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        ),
    ),
}


class SideBySide(torch.nn.Module):
    """Rows of channels, as in ConvNeXt."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.mix = torch.nn.LayerNorm(channels), torch.nn.Linear(channels, channels)

    def forward(self, image):
        return self.mix(self.norm(image.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def wide_training(name):
    shape, build = WIDE[name]
    return Training(build=lambda: seeded(build), shape=shape, optimizer="momentum")


@pytest.mark.parametrize(
    ("network", "precision", "axis", "parts", "threads"),
    one_in(
        28,
        [
            case
            for case in product((*NETWORKS, *WIDE), Precision, Axis, [2, 3, 8], [1, 2])
            # The Transformer masks with a number that float16 does not have.
            if case[1] is not Precision.TF32 and case[:2] != ("transformer", Precision.FLOAT16)
        ],
    ),
)
def test_splits_that_are_said_to_keep_bits_keep_all_of_them(
    one_thread, network, axis, parts, threads, precision
):
    torch.set_num_threads(threads)
    training = replace(
        wide_training(network) if network in WIDE else training_for(network), precision=precision
    )
    step, state = capture_once(training)
    splits = split_of_everything(step.graph, axis, parts, keeps_bits=True)
    assert splits or axis is Axis.CHANNEL
    (batch,) = training.batches()[:1]
    whole, in_parts = (run_all(each, state, batch) for each in (step, split_step(step, splits, CPU)))
    assert differing_tensors(step, splits, whole, in_parts) == []


def test_a_split_graph_is_an_ordinary_graph(one_thread):
    step, _ = capture_once(training_of("resnet", "momentum", 8))
    splits = split_of_everything(step.graph, Axis.BATCH, 4)
    graph = split_graph(step.graph, splits).graph
    assert split_step(step, splits, CPU).graph.digest == graph.digest
    assert lower(graph, plan_one(graph)).guaranteed_peak_nbytes > 0
    assert sum(op.flops for op in graph.ops) == sum(op.flops for op in step.graph.ops)


def test_a_training_batch_norm_is_split_by_channels_alone_and_random_ops_not_at_all(one_thread):
    resnet, _ = capture_once(training_of("resnet", "momentum", 8))
    norms = [op for op in resnet.graph.ops if op.target.startswith("aten.native_batch_norm")]
    assert {find_splitting(op, Axis.BATCH) for op in norms} == {None}
    assert None not in {find_splitting(op, Axis.CHANNEL) for op in norms}
    vgg, _ = capture_once(training_of("vgg with dropout", "momentum", 8))
    assert [op.splittings for op in vgg.graph.ops if "bernoulli" in op.target] == [(), ()]


@pytest.mark.parametrize("lay_out", [lambda training: training, with_channels_last])
@pytest.mark.parametrize(("axis", "parts"), [(Axis.BATCH, 3), (Axis.CHANNEL, 2)])
def test_a_batch_norm_in_evaluation_mode_is_split_along_both_axes_to_its_bits(
    one_thread, lay_out, axis, parts
):
    training = with_frozen_backbone(lay_out(training_of("resnet", "momentum", 8)))
    step, state = capture_once(training)
    norms = [op.id for op in step.graph.ops if op.target == "aten.native_batch_norm.default"]
    splits = split_of_everything(step.graph, axis, parts, keeps_bits=True)
    are_split = {op for split in splits for op in split.ops}
    # Of channels that lie side by side there may be too few.
    assert are_split.intersection(norms) if axis is Axis.CHANNEL else are_split.issuperset(norms)
    (batch,) = training.batches()[:1]
    whole = run_all(step, state, batch)
    in_parts = run_all(split_step(step, splits, CPU), state, batch)
    assert differing_tensors(step, splits, whole, in_parts) == []


def test_rows_that_indices_name_are_taken_and_added_up_in_parts_along_features_alone(one_thread):
    step, _ = capture_once(training_for("gcn"))
    taken, added = (
        [op for op in step.graph.ops if op.target == f"aten.index_{name}.default"]
        for name in ("select", "add")
    )
    added_to = {tensor for op in added for tensor in op.reads}
    filled = [op for op in step.graph.ops if op.target == "aten.full.default" and {*op.writes} & added_to]
    assert len(taken) == len(added) == len(filled) > 0
    for ops in taken, added, filled:
        assert {find_splitting(op, Axis.BATCH) for op in ops} == {None}
        ways = [find_splitting(op, Axis.CHANNEL) for op in ops]
        # The last layer has as many features as there are classes, too few for two parts of four.
        assert {way.extent for way in ways if way is not None} >= {40}
        assert all(way.keeps_bits for way in ways if way is not None)


class Scaled(torch.nn.Module):
    """Rows added up by indices, and two tensors, each with a factor."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(12, 270)

    def forward(self, x):
        rows = self.first(x)
        places = torch.arange(len(x)) // 2
        added = torch.index_add(rows.sigmoid(), 0, places, rows, alpha=0.3)
        return torch.add(added, rows, alpha=0.7)[:, :CLASSES]


@pytest.mark.parametrize("parts", [2, 3, 5])
@pytest.mark.parametrize("precision", Precision)
def test_sums_with_a_factor_are_split_where_no_loop_has_another_end(one_thread, precision, parts):
    training = Training(build=lambda: seeded(Scaled), shape=(256, 12), optimizer="momentum")
    step, state = capture_once(replace(training, precision=precision))
    splits = split_of_everything(step.graph, Axis.CHANNEL, parts, keeps_bits=True)
    split_targets = {step.graph.ops[op].target for split in splits for op in split.ops}
    assert {"aten.index_add.default", "aten.add.Tensor"} <= split_targets
    (batch,) = training.batches()[:1]
    whole, in_parts = (run_all(each, state, batch) for each in (step, split_step(step, splits, CPU)))
    assert differing_tensors(step, splits, whole, in_parts) == []


@functools.cache
def whole_run(network):
    """Return a captured step, what its state and batch begin with, and all values of a whole run."""
    training = training_for(network)
    step, state = capture_once(training)
    (batch,) = training.batches()[:1]
    return step, state, batch, run_all(step, state, batch)


@given(st.data())
@examples(25, suppressed=[HealthCheck.function_scoped_fixture])
def test_any_choice_of_ops_and_parts_keeps_all_but_weights_gradients(one_thread, data):
    step, state, batch, whole = whole_run("vgg with dropout")
    axis = data.draw(st.sampled_from(list(Axis)))
    splits = []
    for split in split_of_everything(step.graph, axis, data.draw(st.integers(2, 5))):
        ops = sorted(data.draw(st.sets(st.sampled_from(split.ops), min_size=1)))
        # Two splits of the same ops may not agree on the parts of a tensor.
        middle = data.draw(st.integers(0, len(ops)))
        halves = (ops[:middle], split.parts), (ops[middle:], data.draw(st.integers(2, 5)))
        splits += [Split(axis=axis, parts=parts, ops=tuple(half)) for half, parts in halves if half]
    in_parts = split_step(step, splits, CPU)
    event(f"{axis}, {sum('copy_' in op.target for op in in_parts.graph.ops) > 10}")
    assert lower(in_parts.graph, plan_one(in_parts.graph)).guaranteed_peak_nbytes > 0
    different = differing_tensors(step, splits, whole, run_all(in_parts, state, batch))
    allowed = summed_tensors(step.graph, splits) | gradients_of_convolutions_weights(step)
    assert set(different) <= made_of(step.graph, allowed)


@given(st.data())
@examples(25, suppressed=[HealthCheck.function_scoped_fixture])
def test_tensors_in_blocks_between_ops_split_along_both_axes_keep_all_but_weights_gradients(one_thread, data):
    step, state, batch, whole = whole_run("resnet")
    chosen = {}
    for op in step.graph.ops:
        if op.splittings and data.draw(st.integers(0, 9)):
            splitting = data.draw(st.sampled_from(op.splittings))
            chosen.setdefault((splitting.axis, splitting.extent), []).append(op.id)
    blocks = data.draw(st.sampled_from([{Axis.BATCH}, {Axis.CHANNEL}, set(Axis)]))
    splits = [
        Split(axis=axis, parts=data.draw(st.integers(2, 5)), ops=tuple(ops), blocks=axis in blocks)
        for (axis, _), ops in sorted(chosen.items())
    ]
    split = split_graph(step.graph, splits)
    event(f"{any(place.within for places in split.blocks.values() for place in places)}")
    in_parts = split_step(step, splits, CPU)
    assert lower(in_parts.graph, plan_one(in_parts.graph)).guaranteed_peak_nbytes > 0
    different = differing_tensors(step, splits, whole, run_all(in_parts, state, batch))
    allowed = summed_tensors(step.graph, splits) | gradients_of_convolutions_weights(step)
    assert set(different) <= made_of(step.graph, allowed)


def test_a_tensor_in_blocks_is_never_whole(one_thread):
    graph = whole_run("resnet")[0].graph
    norms = {op.id for op in graph.ops if op.target.startswith("aten.native_batch_norm")}
    splits = [
        replace(split, ops=tuple(op for op in split.ops if (op in norms) == (axis is Axis.CHANNEL)))
        for axis in Axis
        for split in split_of_everything(graph, axis, 2, blocks=True)
    ]
    split = split_graph(graph, [split for split in splits if split.ops])
    assert len(split.blocks) > len(norms) / 2
    for op, piece in zip(split.graph.ops, split.pieces, strict=True):
        used = [split.graph.tensors[tensor] for tensor in {*op.reads, *op.writes}]
        # Of what an op that is not split reads, too, there is a merged copy.
        merged = any(tensor.name.endswith("/merged") for tensor in used)
        if isinstance(piece, Copy) and piece.tensor in split.blocks and not merged:
            half_nbytes = graph.tensors[piece.tensor].nbytes // 2
            assert {tensor.nbytes for tensor in used} <= {half_nbytes, half_nbytes // 2}


@pytest.mark.parametrize("axis", Axis)
@pytest.mark.parametrize("network", ["mlp", "resnet", "transformer"])
def test_in_bfloat16_only_sums_over_parts_change_by_no_more_than_their_roundings(one_thread, network, axis):
    parts = 3
    step, splits, whole, in_parts, different = compare(network, axis, parts, precision=Precision.BFLOAT16)
    sums = summed_tensors(step.graph, splits)
    assert set(different) <= made_of(step.graph, sums)
    casts = [op for split in splits for op in split.ops if "_to_copy" in step.graph.ops[op].target]
    assert casts
    values = whole_values(step, splits, in_parts)
    for tensor in sums:
        dtype = getattr(torch, step.graph.tensors[tensor].dtype)
        got = torch.frombuffer(bytearray(values[tensor]), dtype=dtype).double()
        want = torch.empty(0, dtype=dtype).set_(whole[tensor]).double()
        # One rounding of each part's sum, one after each addition, one of the whole sum's.
        assert (got - want).norm() <= 2 * parts * 2.0**-8 * want.norm()
