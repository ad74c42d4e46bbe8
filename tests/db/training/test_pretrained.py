"""A real worker trains from pretrained weights, which the command line has brought."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.state import model_state
from tensile_db.data.split import shuffled, split
from tests.jobs.ended_jobs import model_of, notices
from tests.jobs.pretrained_jobs import REQUEST, SIDE, STILL, add_photos, bring, trained


def test_a_training_starts_from_them_and_learns_its_own_classes(database, start_worker, tmp_path):
    add_photos(database)
    network, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    job = trained(database, pretrained_id=weights, options={"pretrained": "test_resnet"}, **STILL)
    kept = database.weights(job["id"])
    for name, value in network.named_parameters():
        if name.startswith("fc."):
            assert len(kept[f"parameter/{name}", 0]) == value.nbytes * 3 // 10
        else:
            assert kept[f"parameter/{name}", 0] == value.detach().numpy().tobytes(), name
    model = model_of(database, job)
    assert (model["name"], model["classes"]) == ("m", [0, 1, 2])
    # timm's for this network: half of white.
    features = model["features"]
    assert (features["mean"], features["scale"], features["size"]) == ([127.5] * 3, [127.5] * 3, [SIDE, SIDE])
    assert features["options"]["pretrained"] == "test_resnet"
    assert notices(database, job) == []


@pytest.mark.parametrize("is_frozen", [False, True])
def test_weights_are_eager_pytorchs_bits(database, start_worker, tmp_path, one_thread, is_frozen):
    pixels = add_photos(database)
    pretrained, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    request = {"epochs": 3, "seed": 5, "optimizer": "momentum", "learning_rate": 0.01}
    job = trained(database, pretrained_id=weights, **request, options={"freeze_backbone": is_frozen})
    codes = np.arange(len(pixels)) % 3
    training, _ = split(len(codes), 0.25, 5, codes)
    network = build("test_resnet", num_outputs=3, input_shape=(3, SIDE, SIDE), seed=5).train()
    state = {name: value for name, value in pretrained.state_dict().items() if not name.startswith("fc.")}
    assert network.load_state_dict(state, strict=False).missing_keys == ["fc.weight", "fc.bias"]
    if is_frozen:
        # Batch norm's statistics, too.
        network.eval().requires_grad_(False)
        network.fc.requires_grad_()
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    mean = scale = torch.full((1, 3, 1, 1), 127.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, foreach=False)
    for epoch in range(3):
        order = shuffled(training, 5, epoch)
        for first in range(0, len(order) // 8 * 8, 8):
            rows = order[first : first + 8]
            optimizer.zero_grad()
            found = network((images[rows] - mean) / scale)
            functional.cross_entropy(found, torch.from_numpy(codes[rows])).backward()
            optimizer.step()
    kept = database.weights(job["id"])
    for name, value in model_state(network).items():
        assert kept[name, 0] == value.numpy().tobytes(), name


def test_of_a_frozen_backbone_nothing_is_kept_for_a_backward_pass(database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    peaks = []
    for is_frozen in (False, True):
        options = {"freeze_backbone": is_frozen, "precision": "float32"}
        request = {"policy": "vanilla", "optimizer": "adam", "batch_size": 16, "options": options}
        job = trained(database, pretrained_id=weights, kind="explain", **request)
        rows = {row["property"]: row["value"] for row in job["result"]["rows"]}
        peaks.append(int(rows["vanilla_peak"]))
    assert peaks[1] < 0.5 * peaks[0]


def test_a_model_goes_on_with_its_backbone_frozen(database, start_worker):
    start_worker()
    first = trained(database, "points", architecture="mlp", features=["a", "b"])
    options = {"freeze_backbone": True, "start_from": "m", "max_gradient_norm": 0.1}
    request = {"architecture": "mlp", "features": ["a", "b"], "optimizer": "adam", "options": options}
    second = trained(database, "points", initial_model_id=first["model_id"], **request)
    before, after = database.weights(first["id"]), database.weights(second["id"])
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {("parameter/5.weight", 0), ("parameter/5.bias", 0)}


@pytest.mark.thorough
def test_grey_images_are_standardised_as_the_mean_of_the_colours(database, start_worker, tmp_path):
    add_photos(database, "grey", mode="L")
    _, weights = bring(database, tmp_path, "test_efficientnet", "--image-size", SIDE)
    start_worker()
    job = trained(database, "grey", pretrained_id=weights, architecture="test_efficientnet")
    features = model_of(database, job)["features"]
    assert features["mean"] == pytest.approx([255 * (0.485 + 0.456 + 0.406) / 3])
    assert features["scale"] == pytest.approx([255 * (0.229 + 0.224 + 0.225) / 3])


@pytest.mark.thorough
def test_arrays_of_numbers_are_standardised_by_their_own(database, start_worker, tmp_path):
    _, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    (job, anew) = (trained(database, "pictures", pretrained_id=each) for each in (weights, None))
    statistics = [
        (model["features"]["mean"], model["features"]["scale"])
        for model in (model_of(database, job), model_of(database, anew))
    ]
    assert statistics[0] == statistics[1]


@pytest.mark.thorough
def test_images_are_made_as_large_as_the_weights_want_them(database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(database, tmp_path)
    start_worker(memory_nbytes=2**30)
    job = trained(database, pretrained_id=weights)
    assert model_of(database, job)["features"]["size"] == [160, 160]
    (said,) = notices(database, job)
    assert said.startswith("images of 32 x 32 are made 160 x 160, which the pretrained weights")
    smaller = trained(database, pretrained_id=weights, options={"image_size": 48})
    assert model_of(database, smaller)["features"]["size"] == [48, 48]
    assert notices(database, smaller) == []


def test_positions_of_another_size_are_refused(database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(database, tmp_path, "test_vit", "--image-size", SIDE, "--name", "patches")
    vit = REQUEST | {"architecture": "test_vit", "pretrained_id": weights}
    start_worker()
    assert database.wait(database.submit("photos", **vit))["state"] == "succeeded"
    for kind in ("train", "explain"):
        row = database.wait(database.submit("photos", kind=kind, **vit, options={"image_size": 48}))
        assert row["error_sqlstate"] == "22023"
        assert row["error_message"] == (
            'the network cannot start from the pretrained weights "patches": parameter/pos_embed is'
            " [1, 5, 64], and [1, 10, 64] in the network"
        )
        assert "they are made for images of 32 x 32" in row["error_hint"]


@pytest.mark.parametrize("is_paused", [False, True])
def test_weights_that_are_replaced_before_a_training_goes_on_are_named(
    database, start_worker, tmp_path, pause, is_paused
):
    add_photos(database)
    _, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    request = REQUEST | {"pretrained_id": weights, "options": {"pretrained": "test_resnet"}, "epochs": 3}
    if is_paused:
        start_worker()
        job = pause.before(3, database, "photos", **request)
    else:
        job = database.submit("photos", **request)
    bring(database, tmp_path, "test_resnet", "--replace")
    if is_paused:
        database.ask(job, pause_requested=False)
    else:
        start_worker()
    row = database.wait(job)
    assert (row["error_sqlstate"], row["error_message"]) == (
        "42704",
        'the pretrained weights "test_resnet" have been deleted or replaced since the training was submitted',
    )


@pytest.mark.thorough
def test_a_paused_training_resumes_from_its_checkpoint(database, start_worker, tmp_path, pause):
    add_photos(database)
    _, weights = bring(database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    request = REQUEST | {"pretrained_id": weights, "epochs": 4, "learning_rate": 0.001}
    whole = trained(database, **request)
    paused = pause.trained(4, database, "photos", **request)
    assert database.weights(paused["id"]) == database.weights(whole["id"])
