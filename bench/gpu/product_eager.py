"""The trainings of the section `product` by plain PyTorch: on the same rows, in the same batches.

Rows held out, batches and pixels' normalisation are the product's own; network, loss and optimizer PyTorch's.
"""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from bench.gpu.machine import Machine
from bench.gpu.product_requests import CLASSES, Images, Request
from tensile_db.capture.networks.architectures import build
from tensile_db.capture.optimizers import configure
from tensile_db.capture.state import model_state
from tensile_db.capture.train_step import capture_train_step
from tensile_db.data.dataset import Batch, Features, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import normalised
from tensile_db.data.split import split
from tensile_db.scheduler.policies import vanilla


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What eager PyTorch came to."""

    model: nn.Module
    #: Parameters and buffers on the host, by the catalog's names.
    state: dict[str, torch.Tensor]
    iteration_ns: int


def eager_peak_nbytes(request: Request, machine: Machine) -> int:
    """Return what eager PyTorch holds at most in an iteration, by the captured step's own sizes."""
    step = capture_train_step(
        _network(request),
        batch_shape=(request.batch_size, 3, request.image_size, request.image_size),
        target="classes",
        optimizer=configure(request.optimizer, learning_rate=request.learning_rate),
        device=machine.torch_device,
    )
    return vanilla.peak_nbytes(step.graph)


def train(request: Request, images: Images, features: Mapping[str, Any], machine: Machine) -> Trained:
    """Train as the request says; features: tensile.models.features of the model that the product made."""
    spec = FeatureSpec.from_json(features)
    training, held_out = split(len(images.labels), request.validation, request.seed, images.labels)
    rows = TrainingSet(
        Features(values=images.pixels, spec=spec),
        images.labels,
        training_rows=training,
        validation_rows=held_out,
        batch_size=request.batch_size,
        seed=request.seed,
    )
    model = _network(request).to(machine.torch_device)
    optimizer = _optimizer(request, model)
    times_ns = []
    with machine.seeded(request.seed), closing(_generator(rows)) as batches:
        for _ in range(request.epochs * rows.batches_per_epoch):
            images_as_bytes, labels, _ = next(batches)
            pixels = torch.from_numpy(normalised(images_as_bytes, spec))
            target = torch.from_numpy(labels)
            begin_ns = time.perf_counter_ns()
            optimizer.zero_grad()
            scores = model(pixels.to(machine.torch_device))
            functional.cross_entropy(scores, target.to(machine.torch_device)).backward()
            optimizer.step()
            machine.synchronize()
            times_ns.append(time.perf_counter_ns() - begin_ns)
    state = {name: tensor.cpu().clone() for name, tensor in model_state(model).items()}
    return Trained(model=model.eval(), state=state, iteration_ns=int(median(times_ns)))


def predict(trained: Trained, request: Request, images: Images, features: Mapping[str, Any]) -> np.ndarray:
    """Return the probability of each class for each image, [rows, classes]."""
    spec = FeatureSpec.from_json(features)
    where = next(trained.model.parameters()).device
    found = []
    with torch.no_grad():
        for rows in _in_batches(len(images.labels), request.batch_size):
            pixels = Features(values=images.pixels, spec=spec).normalised(rows)
            found.append(trained.model(torch.from_numpy(pixels).to(where)).softmax(1).cpu().numpy())
    return np.concatenate(found)


def _in_batches(count: int, size: int) -> Iterator[np.ndarray]:
    for begin in range(0, count, size):
        yield np.arange(begin, min(begin + size, count))


def _generator(rows: TrainingSet) -> Generator[Batch, None, None]:
    # Closed, it ends the thread that reads ahead.
    yield from rows.training(1)


def _network(request: Request) -> nn.Module:
    shape = (3, request.image_size, request.image_size)
    options = {name: value for name, value in request.options.items() if name == "dropout"}
    return build(
        request.architecture, num_outputs=CLASSES, input_shape=shape, seed=request.seed, options=options
    ).train()


def _optimizer(request: Request, model: nn.Module) -> torch.optim.Optimizer:
    """Return PyTorch's own, which updates one parameter at a time, as captured steps do."""
    parameters, rate = list(model.parameters()), request.learning_rate
    if request.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, foreach=False)
    assert request.optimizer == "momentum"
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9, foreach=False)
