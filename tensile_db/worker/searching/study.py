"""What a search does next: the values of its next trial, and whether a trial is stopped early.

Pure: a search and its trials in, a decision out; the same ones give the same decision, so that a search goes
on as it would have where its worker is lost.  Nothing of Optuna's is kept: its study is made anew from the
trials each time, and each trial draws from a generator of its own, named by the search's seed and the trial's
number.

Source: Optuna's samplers and pruners: TPE (Bergstra et al. 2011), asynchronous successive halving (Li et al.
2020), Hyperband (Li et al. 2018).
Differs: grid is no sampler of Optuna's, which would try the points in random order.  Hyperband's TPE learns
from the trials of all brackets together.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from tensile_db.catalog.searches import SearchRow, TrialRow
from tensile_db.udf.space import extremes, is_whole, last_of, nearest_step, points_of

#: One in so many goes on at each rung (eta); the first rung is after the first epoch.
REDUCTION = 3

# It would tell of every study that is made.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def next_params(search: SearchRow, trials: Sequence[TrialRow], *, seed: int) -> dict[str, Any] | None:
    """Return the values of the trial after these, or None where there are to be no more."""
    number = len(trials)
    if number >= search.trials:
        return None
    if search.method == "grid":
        axes = [points_of(name, spec) for name, spec in search.space.items()]
        point = next(itertools.islice(itertools.product(*axes), number, None), None)
        return None if point is None else dict(zip(search.space, point, strict=True))
    study = _study(search, seed=seed, number=number, epochs=None)
    distributions = {name: _distribution(name, spec) for name, spec in search.space.items()}
    study.add_trials([_frozen(search, trial, distributions) for trial in trials])
    asked = study.ask(distributions)
    return {name: _value(name, spec, asked.params[name]) for name, spec in search.space.items()}


def may_prune(search: SearchRow, epoch: int) -> bool:
    """Whether the search stops trials early, and may do so after this epoch."""
    return search.method in ("halving", "hyperband") and _is_rung(epoch)


def reason_to_prune(
    search: SearchRow, trials: Sequence[TrialRow], *, job: int, seed: int, epochs: int
) -> str | None:
    """Return why the trial of a job is to stop after the epochs that it has reported, or None.

    epochs: that a trial has at most.
    """
    study = _study(search, seed=seed, number=0, epochs=epochs)
    answer, own = False, next(trial for trial in trials if trial.job == job)
    asked = {trial.number: study.ask() for trial in trials}
    # Own last: the rungs that the others have reached are known then.
    for trial in sorted(trials, key=lambda trial: (trial.job == job, trial.number)):
        for epoch, value in enumerate(trial.reports, start=1):
            if not _is_rung(epoch):
                continue
            asked[trial.number].report(value, epoch)
            answer = asked[trial.number].should_prune()
    epoch = len(own.reports)
    if not answer or not _is_rung(epoch):
        return None
    reached = sum(len(trial.reports) >= epoch for trial in trials)
    return (
        f"{search.metric} {own.reports[-1]:.4g} after epoch {epoch} is not among the best"
        f" of the {reached} trials that have come so far"
    )


def longest(search: SearchRow, epochs: int) -> int:
    """Return the most epochs that a trial has; epochs: where they do not vary."""
    return max(extremes(search.space["epochs"])) if "epochs" in search.space else epochs


def _is_rung(epoch: int) -> bool:
    """Whether trials are compared after this epoch: 1, 3, 9, ..., in whatever bracket of Hyperband's."""
    while epoch > 1 and epoch % REDUCTION == 0:
        epoch //= REDUCTION
    return epoch == 1


def _study(search: SearchRow, *, seed: int, number: int, epochs: int | None) -> optuna.Study:
    return optuna.create_study(
        # Hyperband's brackets go by it.
        study_name=f"tensile {seed}",
        direction="maximize" if search.more_is_better else "minimize",
        sampler=_sampler(search.method, _seed(seed, number)),
        pruner=_pruner(search.method, epochs),
    )


def _sampler(method: str, seed: int) -> BaseSampler:
    return TPESampler(seed=seed) if method in ("tpe", "hyperband") else RandomSampler(seed=seed)


def _pruner(method: str, epochs: int | None) -> BasePruner:
    if method == "halving":
        return SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION)
    if method == "hyperband" and epochs is not None:
        return HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=REDUCTION)
    return optuna.pruners.NopPruner()


def _seed(seed: int, number: int) -> int:
    """Return the seed of a trial's generator; numpy's are of 32 bits."""
    return int.from_bytes(blake2b(f"{seed} {number}".encode(), digest_size=4).digest())


def _frozen(search: SearchRow, trial: TrialRow, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    states = {
        "unfinished": TrialState.RUNNING,
        "succeeded": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }
    state, value = states[trial.outcome], trial.value
    if state in (TrialState.COMPLETE, TrialState.PRUNED) and (value is None or not math.isfinite(value)):
        state = TrialState.FAIL
    return create_trial(
        state=state,
        value=value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params={name: _code(search.space[name], chosen) for name, chosen in trial.params.items()},
        distributions=dict(distributions),
        intermediate_values=dict(enumerate(trial.reports, start=1)),
    )


def _distribution(name: str, spec: Mapping[str, Any]) -> BaseDistribution:
    if "choices" in spec:
        return CategoricalDistribution(range(len(spec["choices"])))
    low, high, log = spec["low"], last_of(name, spec), bool(spec.get("log"))
    if is_whole(name, spec):
        return IntDistribution(low, high, log=log, step=spec.get("step") or 1)
    return FloatDistribution(low, high, log=log, step=spec.get("step"))


def _code(spec: Mapping[str, Any], value: Any) -> Any:
    """Return a value as Optuna has it: a choice, which may be a list, by its place."""
    if "choices" not in spec:
        return value
    texts = [json.dumps(choice, sort_keys=True) for choice in spec["choices"]]
    return texts.index(json.dumps(value, sort_keys=True))


def _value(name: str, spec: Mapping[str, Any], code: Any) -> Any:
    if "choices" in spec:
        return spec["choices"][code]
    return code if spec.get("step") is None else nearest_step(name, spec, code)
