"""Which rows are held out for validation, in which order the others come, and what is drawn for them."""

import numpy as np
import numpy.typing as npt

from tensile_db.errors import BadData

#: Where the streams of iterations begin, behind all that epochs have.
_ITERATIONS = 2**63


def split(
    count: int, validation: float, seed: int, codes: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of the training rows and of those held out, each ascending.

    validation: the share held out; codes: classes, of each of which about the same share is held out, but
    never the last row.  Equal arguments give equal splits.  Raises BadData where no row is left for training.
    """
    if count == 0:
        raise BadData("the source has no rows", hint="Insert rows, or grant the right to see them.")
    random = _random(seed, 0)
    groups = [np.arange(count)] if codes is None else _by_class(codes)
    takes = _shares(np.array([len(group) for group in groups]), validation)
    parts = [random.permutation(group)[:take] for group, take in zip(groups, takes.tolist(), strict=True)]
    chosen = np.sort(np.concatenate(parts))
    return np.setdiff1d(np.arange(count), chosen, assume_unique=True), chosen


def shuffled(rows: npt.NDArray[np.int64], seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the training rows in the order of an epoch (from 0); the same in every attempt at a job."""
    return _random(seed, epoch + 1).permutation(rows)


def random_of_iteration(seed: int, iteration: int) -> np.random.Generator:
    """Return what an iteration (from 1) draws from, the same in every attempt at a job."""
    return _random(seed, _ITERATIONS + iteration)


def _shares(sizes: npt.NDArray[np.int64], validation: float) -> npt.NDArray[np.int64]:
    """Return how many rows of each class are held out: together about the share that was asked for.

    Rounded down for each class; what that leaves goes, a row each, to those that lost most by it, the first
    ones first.
    """
    wanted = validation * sizes
    takes: npt.NDArray[np.int64] = np.minimum(np.floor(wanted).astype(np.int64), sizes - 1)
    missing = min(round(validation * int(sizes.sum())), int((sizes - 1).sum())) - int(takes.sum())
    for place in np.argsort(takes - wanted, kind="stable").tolist():
        if missing > 0 and takes[place] < sizes[place] - 1:
            takes[place] += 1
            missing -= 1
    return takes


def _by_class(codes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _random(seed: int, stream: int) -> np.random.Generator:
    # A stream of its own for each use: which numbers an epoch draws must not depend on the epochs before.
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, stream], np.uint64)))
