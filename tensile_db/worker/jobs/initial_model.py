"""The model whose weights a training starts from: what it says of rows and target, and its weights.

What it learned stands for something only as long as features, classes and the target's unit stay the same.
So these are the model's, not the new rows'; classes that it does not know come behind its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from tensile_db.capture.state import model_state
from tensile_db.catalog import models
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.labels import Class
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import InvalidRequest, UndefinedModel
from tensile_db.worker.jobs.initial_weights import InitialWeights
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.model_use import is_no_more, scaling_of, spec_of

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """A model to start from, without its weights."""

    id: int
    name: str
    spec: FeatureSpec
    #: Labels in the order of its outputs; None for a number.
    classes: tuple[Class, ...] | None
    #: Of a number; None for classes.
    scaling: TargetScaling | None

    @property
    def num_outputs(self) -> int:
        """Outputs of its network."""
        return 1 if self.classes is None else len(self.classes)


def find_initial_model(job: Job) -> InitialModel | None:
    """Return the model that a training starts from; None where it starts anew.

    Raises UndefinedModel where it has been dropped since the job was submitted.
    """
    model_id = job.row.initial_model_id
    if model_id is None:
        return None
    found = job.records.must(lambda conn: models.find(conn, model_id))
    if found is None:
        raise _is_no_more(job)
    return InitialModel(
        id=found.id,
        name=found.name,
        spec=spec_of(found),
        classes=None if found.classes is None else tuple(found.classes),
        scaling=scaling_of(found),
    )


def weights_of_model(
    job: Job,
    model: InitialModel,
    network: nn.Module,
    shapes: Mapping[str, Sequence[int]] | None,
) -> InitialWeights:
    """Return how a network starts from a model.

    shapes: that the network's tensors would have with as many outputs as the model has; None where nobody
    knows, so that they may only have its own.
    Raises InvalidRequest where the model has others, UndefinedModel where it has been dropped meanwhile.
    """
    learned = job.records.must(lambda conn: models.weight_shapes(conn, model.id))
    if not learned:
        raise _is_no_more(job)
    own = {name: tuple(tensor.shape) for name, tensor in model_state(network).items()}
    places = _paired(learned, own)
    if places is None:
        name = min(learned.keys() ^ own.keys())
        raise _does_not_fit(model, f"only the {'network' if name in own else 'model'} has {name}")
    wanted = own if shapes is None else shapes
    for name, place in places.items():
        if tuple(learned[name]) != tuple(wanted[place]):
            raise _does_not_fit(
                model, f"{place} is {list(own[place])}, and {list(learned[name])} in the model"
            )
    return InitialWeights(
        read=lambda conn: models.read_weights(conn, model.id), places=places, gone=lambda: _is_no_more(job)
    )


def _paired(learned: Iterable[str], own: Iterable[str]) -> Mapping[str, str] | None:
    """Return which name stands for which: equal ones, else those of equal layers in turn; None for neither.

    A layer without weights, as dropout is, moves the numbers of those behind it.
    """
    before, now = sorted(learned, key=_numbered), sorted(own, key=_numbered)
    if [_NUMBER.sub("#", name) for name in before] != [_NUMBER.sub("#", name) for name in now]:
        return None
    return dict(zip(before, now, strict=True))


def _numbered(name: str) -> list[tuple[str, int]]:
    """Return what sorts names by the numbers in them."""
    parts = _NUMBER.split(name)
    return list(zip(parts, (int(number) for number in (*_NUMBER.findall(name), -1)), strict=True))


def _is_no_more(job: Job) -> UndefinedModel:
    name, version = (job.row.options.get(option) for option in ("start_from", "start_from_version"))
    return is_no_more(f'"{name}" (version {version}) that the training starts from')


def _does_not_fit(model: InitialModel, why: str) -> InvalidRequest:
    return InvalidRequest(
        f'the network cannot start from the weights of the model "{model.name}": {why}',
        hint="Leave out image_size and the network's options: then they are the model's.",
    )
