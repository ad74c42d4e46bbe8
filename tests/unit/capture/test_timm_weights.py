"""Weights in files become a network's: those that timm and torchvision write, and no others."""

import json
import os

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

from tensile_db.capture.networks.timm_weights import load
from tensile_db.errors import InvalidRequest, UnknownName

IMAGENET_MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)


def saved(path, network):
    """Save what a network holds; return the file."""
    save_file(network.state_dict(), path)
    return path


def qualified(state):
    """Return tensors by PyTorch's names."""
    return {name.partition("/")[2]: tensor for name, tensor in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "outputs", "of_outputs"),
    [
        ("test_resnet", 10, {"fc.weight", "fc.bias"}),
        ("test_resnet", 1000, {"fc.weight", "fc.bias"}),
        ("test_vit", 7, {"head.weight", "head.bias"}),
        ("test_efficientnet", 2, {"classifier.weight", "classifier.bias"}),
    ],
)
def test_all_weights_but_those_of_the_outputs_are_there(tmp_path, name, outputs, of_outputs):
    network = timm.create_model(name, num_classes=outputs)
    found = load(saved(tmp_path / "w.safetensors", network), name)
    state, kept = network.state_dict(), qualified(found.state)
    assert state.keys() - kept.keys() == of_outputs
    for tensor, value in kept.items():
        assert torch.equal(value, state[tensor]), tensor
    assert (found.architecture, found.size) == (name, (160, 160))


@pytest.mark.parametrize("name", ["w.safetensors", "w.st", "w"])
def test_a_file_of_safetensors_may_have_any_name(tmp_path, name):
    network = timm.create_model("test_vit", num_classes=3)
    found = load(saved(tmp_path / name, network), "test_vit", num_outputs=3)
    assert network.state_dict().keys() - qualified(found.state).keys() == {"head.weight", "head.bias"}


def test_a_network_without_outputs_is_one_too(tmp_path):
    network = timm.create_model("test_vit", num_classes=0)
    found = load(saved(tmp_path / "w.safetensors", network), "test_vit", num_outputs=0)
    assert qualified(found.state).keys() == network.state_dict().keys()


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}])
def test_what_torch_save_has_written_is_read(tmp_path, wrapped):
    network = timm.create_model("test_resnet", num_classes=3)
    # As of a network within DistributedDataParallel.
    state = {f"module.{name}": tensor for name, tensor in network.state_dict().items()}
    torch.save(wrapped(state), tmp_path / "w.pth")
    found = load(tmp_path / "w.pth", "test_resnet")
    assert torch.equal(found.state["parameter/bn1.weight"], network.bn1.weight)


@pytest.mark.slow
def test_torchvisions_names_are_understood(tmp_path):
    theirs = torchvision.models.vgg11(num_classes=6, init_weights=False)
    torch.save(theirs.state_dict(), tmp_path / "vgg.pth")
    # Neither the file's names nor timm tell how many outputs it has.
    found = load(tmp_path / "vgg.pth", "vgg11", num_outputs=6)
    ours = timm.create_model("vgg11", num_classes=6)
    with torch.no_grad():
        ours.head.fc.weight.copy_(theirs.classifier[6].weight)
        ours.head.fc.bias.copy_(theirs.classifier[6].bias)
        assert ours.load_state_dict(qualified(found.state), strict=False).missing_keys == [
            "head.fc.weight",
            "head.fc.bias",
        ]
        images = torch.randn(1, 3, 224, 224)
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images))
    assert found.mean == pytest.approx(IMAGENET_MEAN)


@pytest.mark.slow
def test_the_tag_decides_how_pixels_are_standardised(tmp_path):
    file = saved(tmp_path / "w.safetensors", timm.create_model("tf_efficientnet_b0"))
    assert load(file, "tf_efficientnet_b0.in1k").mean == pytest.approx(IMAGENET_MEAN)
    found = load(file, "tf_efficientnet_b0.ap_in1k")
    assert (found.architecture, found.mean) == ("tf_efficientnet_b0", (127.5,) * 3)


def test_positions_are_fitted_to_images_of_another_size(tmp_path):
    file = saved(tmp_path / "w.safetensors", timm.create_model("test_vit", num_classes=4))
    found = load(file, "test_vit", image_size=64)
    # 4 x 4 patches of 16 x 16 pixels, and one for the class.
    assert (found.size, found.state["parameter/pos_embed"].shape) == ((64, 64), (1, 17, 64))


def test_a_file_that_would_run_something_is_refused(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"fc.weight": Hostile()}, tmp_path / "w.pth")
    with pytest.raises(InvalidRequest, match="has no weights that can be read: it holds no tensors alone"):
        load(tmp_path / "w.pth", "test_resnet")
    assert not (tmp_path / "ran").exists()


def test_timm_is_told_to_read_tensors_alone(tmp_path, monkeypatch):
    asked = []

    def loaded(*arguments, **options):
        asked.append(options["weights_only"])
        return timm.create_model("test_resnet").state_dict()

    # Older versions of timm do otherwise unless they are told.
    monkeypatch.setattr(torch, "load", loaded)
    (tmp_path / "w.pth").touch()
    load(tmp_path / "w.pth", "test_resnet")
    assert asked == [True]


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="it is no file"):
        load(tmp_path / "pipe", "test_resnet")


# A patch is of 16 x 16 pixels, and what is over at the edges would be left out.
@pytest.mark.parametrize("size", [8, 33])
def test_images_that_a_network_cannot_take_are_refused(tmp_path, size):
    file = saved(tmp_path / "w.safetensors", timm.create_model("test_vit"))
    with pytest.raises(InvalidRequest, match=f"cannot take images of {size} x {size}"):
        load(file, "test_vit", image_size=size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "size", "mean"),
    [
        ({"mean": [10, 20, 30], "scale": [1, 2, 3]}, (48, 40), (10.0, 20.0, 30.0)),
        # Grey.
        ({"mean": [10.5], "scale": [2]}, (48, 40), (10.5,) * 3),
        # In other units than bytes have: its size is known all the same.
        ({"mean": [10.5], "scale": [2], "dtypes": ["float32"]}, (48, 40), (127.5,) * 3),
        # Whatever else somebody may have written there.
        ({"mean": ["x"], "scale": [2]}, (160, 160), (127.5,) * 3),
        ({"mean": [float("nan")], "scale": [2]}, (160, 160), (127.5,) * 3),
        ({"mean": [10.5], "scale": [0]}, (160, 160), (127.5,) * 3),
        ({"mean": [1, 2], "scale": [2]}, (160, 160), (127.5,) * 3),
        ({"mean": None, "scale": None}, (160, 160), (127.5,) * 3),
    ],
)
def test_an_exported_model_says_which_images_it_has_learned_from(tmp_path, features, size, mean):
    described = {"kind": "image", "dtypes": ["uint8"], "size": [48, 40]} | features
    classes = json.dumps(["a", "b", "c"])
    state = timm.create_model("test_resnet", num_classes=3).state_dict()
    save_file(
        state, tmp_path / "w.safetensors", metadata={"features": json.dumps(described), "classes": classes}
    )
    found = load(tmp_path / "w.safetensors", "test_resnet")
    assert (found.size, found.mean) == (size, mean)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.safetensors", b""),
        ("empty.pth", b""),
        ("text.safetensors", b"weights, in a way"),
        ("text.pth", b"weights, in a way"),
    ],
)
def test_files_without_weights_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"has no weights that can be read: \S") as refused:
        load(tmp_path / name, "test_resnet")
    assert refused.value.hint == "Give a .safetensors file, or a state dict that torch.save has written."


@pytest.mark.parametrize(
    "kept", [[1, 2], {}, {"epoch": 3}, {"state_dict": {"fc.weight": 3.0}}, torch.zeros(3)], ids=repr
)
def test_something_else_than_tensors_by_name_is_refused(tmp_path, kept):
    torch.save(kept, tmp_path / "w.pth")
    with pytest.raises(InvalidRequest, match="has no weights that can be read"):
        load(tmp_path / "w.pth", "test_resnet")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_other_widths_become_float32(tmp_path, dtype):
    network = timm.create_model("test_resnet", num_classes=3)
    file = saved(tmp_path / "w.safetensors", network.to(dtype))
    found = load(file, "test_resnet").state["parameter/bn1.weight"]
    assert torch.equal(found, network.bn1.weight.to(torch.float32))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool])
def test_what_cannot_be_weights_is_refused(tmp_path, dtype):
    state = timm.create_model("test_resnet").state_dict()
    torch.save(state | {"bn1.weight": state["bn1.weight"].to(dtype)}, tmp_path / "w.pth")
    with pytest.raises(InvalidRequest, match=r"bn1\.weight is of type \w+, and weights are"):
        load(tmp_path / "w.pth", "test_resnet")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"cannot read .*nothing\.pth: No such file or directory"):
        load(tmp_path / "nothing.pth", "test_resnet")


def test_the_weights_of_another_network_are_refused(tmp_path):
    file = saved(tmp_path / "w.safetensors", timm.create_model("test_resnet"))
    with pytest.raises(InvalidRequest, match='has not the weights of a "test_vit": Missing key') as refused:
        load(file, "test_vit")
    # timm names every tensor.
    assert len(refused.value.message) < 500


@pytest.mark.slow
def test_a_tensor_that_is_missing_is_named_where_timm_is_not_strict(tmp_path):
    state = timm.create_model("inception_v3").state_dict()
    del state["Conv2d_1a_3x3.conv.weight"]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(InvalidRequest, match=r"it lacks Conv2d_1a_3x3\.conv\.weight"):
        load(tmp_path / "w.safetensors", "inception_v3")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    network = timm.create_model("test_resnet")
    with torch.no_grad():
        network.bn1.weight[3] = float("nan")
    with pytest.raises(InvalidRequest, match=r"bn1\.weight has numbers that are not finite"):
        load(saved(tmp_path / "w.safetensors", network), "test_resnet")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlp", 'the architecture "mlp" has no pretrained weights'),
        ("resnet18x", 'unknown architecture "resnet18x"'),
        ("resnet18.tw_in1k", 'unknown tag "tw_in1k"'),
    ],
)
def test_names_that_nobody_has_weights_of_are_refused(tmp_path, name, message):
    with pytest.raises(UnknownName if "unknown" in message else InvalidRequest) as refused:
        load(tmp_path / "not looked at", name)
    assert refused.value.message == message
