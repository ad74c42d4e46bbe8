"""Salus' table 3: its networks are what they say, train as in eager PyTorch, and take what their ops do."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensile_db.bench.networks.overfeat import OverFeat
from tensile_db.bench.networks.salus import SALUS
from tensile_db.bench.networks.seq2seq import Lstm, Seq2Seq
from tensile_db.bench.networks.speech import DeepSpeech, Recurrence
from tensile_db.bench.networks.superres import SuperResolution
from tensile_db.bench.networks.vae import Drawn, Vae
from tensile_db.bench.points import subject
from tensile_db.bench.queueing import serving, trace
from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import initial_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.scheduler.machines import machine
from tests.examples import one_in
from tests.unit.capture.interpreter import Interpreter, same_bits

#: Left out of `make check`.
pytestmark = pytest.mark.slow

P100 = machine("sim:p100")
SEED = 5

#: Millions of trained parameters, as published or by hand.
PARAMETERS = {
    "overfeat_25": 145.9,
    "vae_64": 1.3,
    "superres_32": 0.1,
    "speech_25": 7.4,
    "seq2seq_small": 7.3,
    "seq2seq_medium": 33.0,
    "seq2seq_large": 117.0,
}

#: A small one of each, what a row of it is, targets for each row, and classes.
SMALL = {
    "vae": (lambda: Vae(pixels=12, width=8, latent=3, dropout=0.1), (12,), 12, 2),
    "speech": (lambda: DeepSpeech(coefficients=5, width=8, labels=4, dropout=0.05), (6, 5), 6, 4),
    "seq2seq": (
        lambda: Seq2Seq(vocabulary=30, width=8, depth=2, length=4, dropout=0.5),
        (8,),
        4,
        30,
    ),
    "overfeat": (lambda: OverFeat(classes=10), (3, 231, 231), 1, 10),
    "superres": (lambda: SuperResolution(enlarged=3), (1, 4, 4), 144, 2),
}


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Kernels choose their layouts by the number of threads, too."""


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def built(name):
    torch.manual_seed(3)
    return SMALL[name][0]()


def features_of(name, rows, generator):
    _, row_shape, _, classes = SMALL[name]
    if name == "seq2seq":
        return torch.randint(classes, (rows, *row_shape), generator=generator)
    return torch.randn((rows, *row_shape), generator=generator)


def batches(name, rows, count):
    _, _, targets, classes = SMALL[name]
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        features = features_of(name, rows, generator)
        yield features, torch.randint(classes, (rows * targets,), generator=generator)


def test_table_3_is_45_workloads_of_15_networks_three_of_each():
    sizes = {}
    for name, sized in SALUS.items():
        sizes.setdefault(sized.network, []).append(name.removeprefix(f"{sized.network}_"))
    assert len(SALUS) == 45
    assert {network: len(of_it) for network, of_it in sizes.items()} == dict.fromkeys(sizes, 3)
    assert len(sizes) == 15
    assert sizes["vae"] == ["64", "128", "256"]
    assert sizes["seq2seq"] == ["small", "medium", "large"]
    assert [SALUS[f"speech_{size}"].batch for size in sizes["speech"]] == [25, 50, 75]


def test_14_networks_are_served_all_but_speech():
    assert set(serving.NETWORKS) == {sized.network for sized in SALUS.values()} - {"speech"}
    assert serving.NETWORKS["seq2seq"] is SALUS["seq2seq_small"].workload


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_has_as_many_parameters_as_its_source_says(name):
    assert round(parameters(SALUS[name].workload.module(1)) / 1e6, 1) == PARAMETERS[name]


@pytest.mark.parametrize("name", one_in(3, SMALL))
def test_a_network_trains_bitwise_as_eager(name):
    model, (_, row_shape, targets, _) = built(name), SMALL[name]
    rows = 1 if name == "overfeat" else 3
    config = configure("sgd", learning_rate=0.01)
    data = list(batches(name, rows, 1 if name == "overfeat" else 3))
    step = capture_train_step(
        model,
        batch_shape=(rows, *row_shape),
        target="classes",
        optimizer=config,
        features_dtype=data[0][0].dtype,
        targets_per_row=targets,
    )
    walk = Interpreter(step, torch.Generator().manual_seed(SEED), strict=name != "overfeat")
    walk.load_state(initial_state(model, config))
    captured = [walk.run(number, batch)["loss"] for number, batch in enumerate(data, start=1)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    torch.manual_seed(SEED)
    for loss, (features, labels) in zip(captured, data, strict=True):
        optimizer.zero_grad()
        eager = functional.cross_entropy(model(features), labels)
        eager.backward()
        optimizer.step()
        assert same_bits(loss, eager.detach())
    state = walk.state()
    assert [
        key for key, tensor in model.named_parameters() if not same_bits(state[f"parameter/{key}"], tensor)
    ] == []


@pytest.mark.parametrize("name", ["vae", "speech", "seq2seq", "superres"])
def test_a_forward_pass_draws_nothing_and_predicts_as_eager(name):
    model = built(name).eval()
    features = features_of(name, 2, torch.Generator().manual_seed(1))
    step = capture_forward_step(model, tuple(features.shape), features_dtype=features.dtype)
    walk = Interpreter(step, torch.Generator().manual_seed(SEED), strict=True)
    walk.load_state(initial_state(model))
    with torch.no_grad():
        assert same_bits(walk.run(1, [features])["logits"], model(features))


@pytest.mark.parametrize(
    ("name", "per_row"),
    [
        # For each weight that a row meets three products of two operations, two of them where nothing asks
        # for the input's gradient.
        ("vae_64", 6 * 1_315_000 - 2 * 784 * 500),
        pytest.param("speech_25", 150 * (6 * 7_425_000 - 2 * 26 * 1024), marks=pytest.mark.thorough),
        # Encoder, decoder: two layers of two 200 x 800 matrices; 200 x 10,000 at the decoder's end.
        ("seq2seq_small", 20 * 6 * (2 * 2 * 2 * 200 * 800 + 200 * 10_000)),
        ("overfeat_25", 3 * 2 * 2.77e9),
    ],
)
def test_flops_are_counted_and_a_step_takes_at_least_as_long_as_they_do(captures, name, per_row):
    sized = SALUS[name]
    job = subject(captures.graph(sized.workload, sized.batch, "momentum"), P100)
    flops = sum(op.flops for op in job.graph.ops)
    assert flops == pytest.approx(sized.batch * per_row, rel=0.03)
    arithmetic_ns = flops * 1e9 / P100.flops_per_s
    overhead_ns = len(job.graph.ops) * P100.op_overhead_ns
    assert max(arithmetic_ns, overhead_ns) <= job.eager_ns <= 4 * (arithmetic_ns + overhead_ns)


def test_an_lstm_layer_is_pytorchs():
    torch.manual_seed(2)
    width = 4
    ours, theirs = Lstm(width), nn.LSTM(width, width)

    def in_order(weight):
        # Theirs: input, forget, candidate, output.
        into, kept, candidate, out = weight.chunk(4)
        return torch.cat([into, kept, out, candidate])

    with torch.no_grad():
        ours.input.weight.copy_(in_order(theirs.weight_ih_l0))
        ours.input.bias.copy_(in_order(theirs.bias_ih_l0 + theirs.bias_hh_l0))
        ours.recurrent.weight.copy_(in_order(theirs.weight_hh_l0))
        sequence, more = torch.randn(2, 5, 3, width)
        output, state = ours(sequence, None)
        after, (hidden, cells) = ours(more, state)
        expected, _ = theirs(torch.cat([sequence, more]))
        _, (their_hidden, their_cells) = theirs(torch.cat([sequence, more]))
    torch.testing.assert_close(torch.cat([output, after]), expected)
    torch.testing.assert_close((hidden, cells), (their_hidden[0], their_cells[0]))


def test_a_decoder_knows_the_source_and_does_not_look_ahead():
    model = built("seq2seq").eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    scores = model(tokens)
    later = model(torch.tensor([[1, 2, 3, 4, 5, 6, 9, 9]]))
    assert (scores == later).all(dim=1).tolist() == [True, True, False, False]
    other = model(torch.tensor([[1, 2, 3, 9, 5, 6, 7, 8]]))
    assert (scores == other).all(dim=1).tolist() == [False] * 4


def test_speech_hears_both_ways():
    torch.manual_seed(2)
    layer = Recurrence(4)
    frames = torch.randn(2, 5, 4)
    changed = frames.clone()
    changed[:, 2] += 1.0
    same = [
        (layer(frames, backwards=way) == layer(changed, backwards=way)).all(dim=2).all(dim=0).tolist()
        for way in (False, True)
    ]
    assert [one[:2] for one in same] == [[True, True], [False, False]]
    assert [one[3:] for one in same] == [[False, False], [True, True]]


def test_a_vaes_gradients_are_those_of_the_whole_bound():
    torch.manual_seed(2)
    rows, pixels, latent = 3, 12, 4
    mean, log_variance = (torch.randn(rows, latent, requires_grad=True) for _ in range(2))
    noise, weights = torch.randn(rows, latent), torch.randn(latent, pixels)
    images = torch.randint(2, (rows, pixels)).float()

    def likelihood(sample):
        return functional.binary_cross_entropy_with_logits(sample @ weights, images)

    whole = likelihood(mean + (log_variance / 2).exp() * noise)
    divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2
    expected = torch.autograd.grad(whole + divergence / images.numel(), [mean, log_variance])
    given = torch.autograd.grad(
        likelihood(Drawn.apply(mean, log_variance, noise, 1 / images.numel())), [mean, log_variance]
    )
    torch.testing.assert_close(given, expected)


def test_a_vaes_cross_entropy_is_bernoullis_likelihood():
    model = built("vae").eval()
    images = torch.randn(3, 12)
    dark, light = model(images).unbind(1)
    assert not dark.any()
    classes = torch.randint(2, (36,))
    torch.testing.assert_close(
        functional.cross_entropy(torch.stack([dark, light], 1), classes),
        functional.binary_cross_entropy_with_logits(light, classes.float()),
    )


def fifo(jobs):
    """Return mean queueing and 95 % completion time in minutes, of jobs one after another."""
    now_s, waits, times = 0.0, [], []
    for job in jobs:
        begin_s = max(now_s, job.at_s)
        now_s = begin_s + job.length_s
        waits.append(begin_s - job.at_s)
        times.append(now_s - job.at_s)
    return sum(waits) / len(waits) / 60, sorted(times)[94] / 60


def test_the_trace_is_the_candidate_whose_fifo_is_closest_to_salus():
    def distance(candidate):
        gap_s, sigma, seed = candidate
        queueing, completion_95 = fifo(trace.draw(tuple(SALUS), gap_s=gap_s, sigma=sigma, seed=seed))
        return abs(queueing - 167.6) + abs(completion_95 - 251.1)

    assert len(trace.CANDIDATES) == 1416
    assert min(trace.CANDIDATES, key=distance) == trace.CHOSEN


def test_the_trace_has_all_15_networks():
    jobs = trace.draw(tuple(SALUS))
    assert len(jobs) == 100
    assert {SALUS[job.name].network for job in jobs} == {sized.network for sized in SALUS.values()}
    assert sum(job.length_s for job in jobs) == pytest.approx(303.4 * 60)
    assert [job.at_s for job in jobs] == sorted(job.at_s for job in jobs)
