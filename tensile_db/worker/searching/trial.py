"""A training that is a trial: stopped early where its search wants that, its model kept if it is the best."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from tensile_db.catalog import searches
from tensile_db.catalog.searches import SearchRow
from tensile_db.errors import InvalidRequest, NonFiniteLoss
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.training import EpochEnded
from tensile_db.worker.searching.study import longest, may_prune, reason_to_prune


class Pruned(Exception):
    """The trial is not worth going on with; raised at the end of an epoch."""

    def __init__(self, reason: str, value: float) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a training is a trial of."""

    search: SearchRow
    #: The search's own.
    seed: int
    epochs: int

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return what decides of an epoch's metrics.  Raises InvalidRequest, NonFiniteLoss."""
        prefix, metric = "validation_", self.search.metric
        value = metrics.get(prefix + metric)
        # Some metrics are there only where outputs are finite.
        loss = metrics.get(prefix + "loss", 0.0)
        if value is None and not math.isfinite(loss):
            metric, value = "loss", loss
        if value is None:
            known = sorted(name.removeprefix(prefix) for name in metrics if name.startswith(prefix))
            if not known:
                raise InvalidRequest(
                    "no row is held out, and so nothing tells which trial is best",
                    hint="Use a source with more rows, of each class two or more, or a larger validation.",
                )
            raise InvalidRequest(
                f'the validation has no metric "{metric}"', hint=f"Search for one of {', '.join(known)}."
            )
        if not math.isfinite(value):
            raise NonFiniteLoss(
                f"the validation's {metric} became {value}", hint="Search among smaller learning rates."
            )
        return value


def trial_of(job: Job) -> Trial | None:
    """Return what the job is a trial of, or None."""
    search_id = job.row.search_id
    if search_id is None:
        return None
    found = job.records.must(lambda conn: searches.find_of_trial(conn, search_id))
    return None if found is None else Trial(search=found[0], seed=found[1], epochs=found[2])


def after_epoch(job: Job, trial: Trial | None) -> EpochEnded | None:
    """Return what is to be done with each epoch's metrics.

    Raises Pruned, and what Trial.value raises.
    """
    if trial is None:
        return None

    def look(metrics: Mapping[str, float], epoch: int, is_last: bool) -> None:
        value = trial.value(metrics)
        if is_last or not may_prune(trial.search, epoch):
            return
        # What this epoch came to is written first.
        known = job.records.must(lambda conn: searches.trials(conn, trial.search.job_id))
        reason = reason_to_prune(
            trial.search,
            known,
            job=job.row.id,
            seed=trial.seed,
            epochs=longest(trial.search, trial.epochs),
        )
        if reason is not None:
            raise Pruned(reason, value)

    return look


def keeps_model(conn: Connection, job: Job, trial: Trial | None, metrics: Mapping[str, float]) -> bool:
    """Whether a training's model is to be kept: any but a trial's that another one beats."""
    if trial is None:
        return True
    return searches.finish_trial(conn, trial.search, job=job.row.id, value=trial.value(metrics))
