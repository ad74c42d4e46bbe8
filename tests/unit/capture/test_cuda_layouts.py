"""Forward parts of steps captured for a GPU; no GPU is needed to look at them, only PyTorch built for one."""

import pytest
import timm
import torch

from tensile_db.capture.fakes.cuda_layouts import CudaFakeMode
from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.errors import Unsupported

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch was built without CUDA")

aten = torch.ops.aten


def batch_norm(mode, *, training):
    with mode:
        x = torch.empty(4, 8, 6, 6, device="cuda:0")
        weights = [torch.empty(8, device="cuda:0") for _ in range(4)]
        return aten.cudnn_batch_norm.default(x, *weights, training, 0.1, 1e-5)


@pytest.mark.parametrize("nbytes", [0, 4096])
def test_cudnns_reserve_is_as_large_as_cudnn_says(nbytes):
    asked = []

    def reserve_nbytes(features, training):
        asked.append((tuple(features.shape), training))
        return nbytes

    out, mean, _, reserve = batch_norm(CudaFakeMode(reserve_nbytes=reserve_nbytes), training=True)
    assert asked == [((4, 8, 6, 6), True)]
    assert (reserve.numel(), reserve.dtype, reserve.device.type) == (nbytes, torch.uint8, "cuda")
    assert (tuple(out.shape), tuple(mean.shape)) == ((4, 8, 6, 6), (8,))


def test_an_evaluating_batch_norm_keeps_nothing():
    *_, reserve = batch_norm(CudaFakeMode(reserve_nbytes=lambda *_: 4096), training=False)
    assert reserve.numel() == 0


def _lstm(*, train):
    with CudaFakeMode():
        x = torch.empty(5, 2, 3, device="cuda:0")
        weights = [torch.empty(size, device="cuda:0") for size in ((16, 3), (16, 4), (16,), (16,))]
        states = [torch.empty(1, 2, 4, device="cuda:0") for _ in range(2)]
        lstm = 2
        return aten._cudnn_rnn.default(
            x, weights, 4, None, *states, lstm, 4, 0, 1, False, 0.0, train, False, [], None
        )


def test_a_recurrent_layer_in_training_is_refused_for_nobody_knows_what_it_keeps():
    with pytest.raises(Unsupported, match="cannot be trained on a GPU yet") as refusal:
        _lstm(train=True)
    assert "--device cpu" in refusal.value.hint
    output, *_ = _lstm(train=False)
    assert tuple(output.shape) == (5, 2, 4)


@pytest.mark.slow
def test_a_network_going_forward_is_captured_for_a_gpu_that_is_not_there():
    model = timm.create_model("test_resnet", num_classes=5)
    step = capture_forward_step(model, (2, 3, 32, 32), device=torch.device("cuda:0"))
    targets = {op.target for op in step.graph.ops}
    assert {"aten.convolution.default", "aten.cudnn_batch_norm.default"} <= targets
