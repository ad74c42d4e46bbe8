"""The models of `bench.serving`: 14 small networks, each trained several times, and what eager PyTorch says.

Source: Salus table 3, of whose networks ResNet-50 and InceptionV3 are here as they are, the other ResNets as
smaller ones, and RepVGG for the VGGs; the rest are small networks of other kinds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import torch
from sqlalchemy import Connection

from tensile_db.capture.networks import architectures
from tensile_db.catalog import models
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.one_row import features_of_row
from tensile_db.worker.jobs.checkpoints import from_stored

#: On 32 x 32 pixels; InceptionV3 on 75 x 75, the least that it takes.
NETWORKS = (
    "mlp",
    "resnet10t",
    "mobilenetv2_050",
    "mobilenetv3_small_050",
    "regnetx_002",
    "vit_tiny_patch16_224",
    "ghostnet_050",
    "convnext_atto",
    "repvgg_a0",
    "resnet18",
    "densenet121",
    "resnet26",
    "resnet50",
    "inception_v3",
)

_SUBMIT = """
    SELECT tensile_submit(%s, 'few_pictures', model => %s, epochs => 1, batch_size => 16, seed => %s,
                          features => ARRAY['image'], target => 'label')
"""
_PATIENCE_S = 900.0
#: Scores this close, as a part of the largest one, may come out in another order in batches of other sizes.
_TIE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One that is asked for."""

    name: str
    network: str
    #: Of its parameters and buffers.
    nbytes: int
    #: What eager PyTorch predicts, by the row's id; more than one where scores are all but equal.
    right: dict[int, frozenset[str]]


def train(session: psycopg.Connection[Any], count: int) -> dict[str, str]:
    """Train `count` models, an epoch of some rows each; return their networks by name."""
    networks, jobs = {}, []
    for number in range(count):
        network, seed = NETWORKS[number % len(NETWORKS)], number // len(NETWORKS)
        name = f"{network}_{seed}"
        networks[name] = network
        jobs += [job for (job,) in session.execute(_SUBMIT, [network, name, seed]).fetchall()]
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        states = session.execute("SELECT state FROM tensile.jobs WHERE id = ANY (%s)", [jobs]).fetchall()
        if all(state == "succeeded" for (state,) in states):
            return networks
        if {"failed", "cancelled"} & {state for (state,) in states} or time.monotonic() > deadline:
            raise RuntimeError(f"trainings ended as {states}")
        time.sleep(0.2)


def read(conn: Connection, networks: dict[str, str], rows: Sequence[int]) -> list[Model]:
    """Return the trained models, with what is right for these rows of the table pictures."""
    asked = conn.exec_driver_sql("SELECT id, array_send(image::float8[]) FROM public.pictures").fetchall()
    images = {row: bytes(image) for row, image in asked if row in rows}
    found = []
    for name, network in networks.items():
        (number,) = conn.exec_driver_sql("SELECT id FROM tensile.models WHERE name = %s", (name,)).one()
        model = models.find(conn, number)
        assert model is not None
        with models.read_weights(conn, number) as stored:
            state = from_stored(stored)
        spec = FeatureSpec.from_json(model.features)
        inputs = {row: features_of_row(spec, "array", image) for row, image in images.items()}
        found.append(
            Model(
                name=name,
                network=network,
                nbytes=sum(tensor.nbytes for tensor in state.values()),
                right=_eager(network, model.classes or (), state, spec, inputs),
            )
        )
    return found


def _eager(
    network: str,
    classes: Sequence[Any],
    state: dict[str, torch.Tensor],
    spec: FeatureSpec,
    inputs: dict[int, np.ndarray | None],
) -> dict[int, frozenset[str]]:
    module = architectures.build(network, num_outputs=len(classes), input_shape=spec.input_shape, seed=0)
    # Named "parameter/..." and "buffer/...".
    module.load_state_dict({name.partition("/")[2]: tensor for name, tensor in state.items()})
    module.eval()
    with torch.inference_mode():
        scores = module(torch.from_numpy(np.stack([image for image in inputs.values() if image is not None])))
    near = scores.max(dim=1, keepdim=True).values - _TIE * scores.abs().max(dim=1, keepdim=True).values
    return {
        row: frozenset(str(classes[place]) for place in torch.nonzero(like).flatten().tolist())
        for row, like in zip(inputs, scores >= near, strict=True)
    }
