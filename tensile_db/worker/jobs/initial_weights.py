"""Weights in the catalog that a network starts from: a model's, or pretrained ones."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from sqlalchemy import Connection

from tensile_db.catalog.tensors import StoredTensor
from tensile_db.errors import UndefinedModel
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """Where a network's first weights are."""

    #: Gives them one by one; none where they are no more.
    read: Callable[[Connection], AbstractContextManager[Iterator[StoredTensor]]]
    #: By the name of each, that of the network's tensor that takes it.
    places: Mapping[str, str]
    #: The error where they are no more.
    gone: Callable[[], UndefinedModel]


def take_weights(job: Job, weights: InitialWeights, state: Mapping[str, torch.Tensor]) -> None:
    """Give a network's parameters and buffers the values that are kept, in place.

    state: of the network, by name.
    What has a place for each output keeps its own values in places that the weights do not have, as do
    tensors that they lack, and the optimizer's state.
    Raises UndefinedModel where they have been dropped since they were found.
    """

    def take(conn: Connection) -> int:
        taken = 0
        # One tensor at a time: the network may be nearly all that the machine has room for.
        with weights.read(conn) as stored:
            for tensor in stored:
                for name, learned in checkpoints.from_stored([tensor]).items():
                    state[weights.places[name]][tuple(map(slice, learned.shape))].copy_(learned)
                    taken += 1
        return taken

    if not job.records.must(take):
        raise weights.gone()
