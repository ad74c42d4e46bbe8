"""Pretrained weights that a training starts from: which, what images they are made for, and where each goes.

Outputs are learned anew: what the weights told apart once is none of the training's classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from tensile_db.capture.networks.freezing import output_tensors
from tensile_db.capture.state import model_state
from tensile_db.catalog import pretrained
from tensile_db.catalog.pretrained import PretrainedRow
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.errors import InvalidRequest, UndefinedModel
from tensile_db.worker.jobs.initial_weights import InitialWeights
from tensile_db.worker.jobs.job import Job


def find_pretrained(job: Job) -> PretrainedRow | None:
    """Return the weights that a training starts from; None where it names none.

    Raises UndefinedModel where they have been dropped since the job was submitted.
    """
    weights_id = job.row.pretrained_id
    if weights_id is None:
        return None
    found = job.records.must(lambda conn: pretrained.find(conn, weights_id))
    if found is None:
        raise _is_no_more(job)
    return found


def standardised_as(spec: FeatureSpec, weights: PretrainedRow, *, are_bytes: bool) -> FeatureSpec:
    """Return how features are made for the weights; spec: by the rows alone.

    are_bytes: whether pixels are 0 to 255.  Of others nobody knows what black and white are: they are
    standardised by the rows' own mean and deviation, which is what the weights' do to their images.
    """
    channels = len(spec.mean)
    if not are_bytes or channels not in (1, len(weights.mean)):
        return spec
    mean, scale = tuple(weights.mean), tuple(weights.scale)
    if channels < len(mean):
        # Grey fills all of them alike.
        mean, scale = (float(np.mean(mean)),), (float(np.mean(scale)),)
    return replace(spec, mean=mean, scale=scale)


def weights_of_pretrained(
    job: Job,
    weights: PretrainedRow,
    network: nn.Module,
    wider: Mapping[str, Sequence[int]] | None,
) -> InitialWeights:
    """Return how a network starts from pretrained weights.

    wider: shapes that the network's tensors would have with one output more, by name; None where nobody
    knows.
    Raises InvalidRequest where they are another network's, UndefinedModel where they have been dropped
    meanwhile.
    """
    learned = job.records.must(lambda conn: pretrained.weight_shapes(conn, weights.id))
    if not learned:
        raise _is_no_more(job)
    own = {name: tuple(tensor.shape) for name, tensor in model_state(network).items()}
    for name, shape in learned.items():
        if own.get(name) != shape:
            is_now = f"{list(own[name])} in the network" if name in own else "not in the network"
            raise _do_not_fit(weights, f"{name} is {list(shape)}, and {is_now}")
    if wider is not None:
        missing = own.keys() - learned.keys() - output_tensors(network, wider)
        if missing:
            raise _do_not_fit(weights, f"only the network has {min(missing)}")
    return InitialWeights(
        read=lambda conn: pretrained.read_weights(conn, weights.id),
        places={name: name for name in learned},
        gone=lambda: _is_no_more(job),
    )


def _is_no_more(job: Job) -> UndefinedModel:
    name = job.row.options.get("pretrained")
    return UndefinedModel(
        f'the pretrained weights "{name}" have been deleted or replaced since the training was submitted',
        hint="Submit it again; SELECT name, architecture FROM tensile.pretrained_weights lists those there.",
    )


def _do_not_fit(weights: PretrainedRow, why: str) -> InvalidRequest:
    return InvalidRequest(
        f'the network cannot start from the pretrained weights "{weights.name}": {why}',
        hint=f"Leave out image_size, for they are made for images of {weights.height} x {weights.width};"
        " or have them imported for others: tensile-db import-weights ... --image-size ...",
    )
