"""A search from its first trial to its last: begins trials while there is room, and knows when to give up.

Knows of trials only what their rows say, so that another attempt at the search goes on where this one is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensile_db.catalog.searches import SearchRow, TrialRow
from tensile_db.errors import TensileError
from tensile_db.worker.searching.study import next_params

#: The source's fault, which no other trial would escape: it is gone, forbidden, or its rows cannot be used.
_OF_THE_SOURCE = ("22000", "22004", "2202E", "22P03", "42501", "42702", "42703", "42P01")

#: What another choice of values may escape: too large, diverged, cancelled.
_OF_THE_CHOICE = ("22003", "53200", "57014")

#: So many trials that fail alike, before any has reached the end of an epoch, are taken for all.
_HOPELESS = 3


class Trials(Protocol):
    """A search's trials, as its loop needs them."""

    def read(self) -> Sequence[TrialRow]:
        """Return all that were begun, by number."""
        ...

    def begin(self, number: int, params: Mapping[str, Any]) -> str:
        """Begin the next one; return why that must wait, "" where it need not."""
        ...

    def tell(self, progress: Mapping[str, Any], wait_reason: str) -> None:
        """Let the search's row say how far it is."""
        ...

    def pause(self) -> None:
        """Wait until it is time to look again.  Raises Stopped."""
        ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a search."""

    best: TrialRow
    progress: Mapping[str, Any]


def drive(search: SearchRow, trials: Trials, *, seed: int) -> Found:
    """Begin trials, at most max_parallel at a time, until all have ended; return the best.

    Raises what `Trials` raises, and the trials' error where none of them succeeds.
    """
    while True:
        known = trials.read()
        _give_up_if_hopeless(known)
        wait_reason = ""
        unfinished = sum(trial.outcome == "unfinished" for trial in known)
        complete = False
        while unfinished < search.max_parallel and not wait_reason:
            params = next_params(search, known, seed=seed)
            if params is None:
                complete = True
                break
            wait_reason = trials.begin(len(known), params)
            if not wait_reason:
                known = trials.read()
                unfinished = sum(trial.outcome == "unfinished" for trial in known)
        told = progress(search, known)
        if complete and not unfinished:
            best = best_of(search, known)
            if best is None:
                raise _failure(known[-1], "no trial of the search succeeded")
            return Found(best=best, progress=told)
        trials.tell(told, wait_reason)
        trials.pause()


def best_of(search: SearchRow, trials: Sequence[TrialRow]) -> TrialRow | None:
    """Return the best of the trials trained to their end; of equal ones the first."""
    ended = [trial for trial in trials if trial.outcome == "succeeded" and trial.value is not None]
    sign = -1.0 if search.more_is_better else 1.0
    return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def progress(search: SearchRow, trials: Sequence[TrialRow]) -> dict[str, Any]:
    """Return how far a search is, as its job's result has it."""
    outcomes = [trial.outcome for trial in trials]
    best = best_of(search, trials)
    return {
        "trials": search.trials,
        "begun": len(trials),
        **{name: outcomes.count(name) for name in ("unfinished", "succeeded", "pruned", "failed")},
        "metric": search.metric,
        "best": None
        if best is None
        else {
            "trial": best.number,
            "job_id": best.job,
            "params": dict(best.params),
            "value": best.value,
        },
    }


def _give_up_if_hopeless(trials: Sequence[TrialRow]) -> None:
    """Raise the trials' error where no other trial would fare better."""
    if any(trial.reports or trial.outcome == "succeeded" for trial in trials):
        return
    failed = [trial for trial in trials if trial.outcome == "failed"]
    for trial in failed:
        if trial.error_sqlstate in _OF_THE_SOURCE:
            raise _failure(trial, "the trials of the search cannot succeed")
    alike = [trial for trial in failed if trial.error_message == failed[0].error_message]
    if len(alike) >= _HOPELESS and alike[0].error_sqlstate not in _OF_THE_CHOICE:
        raise _failure(alike[-1], f"{len(alike)} trials of the search failed alike")


def _failure(trial: TrialRow, what: str) -> TensileError:
    """Return a trial's error as the search's."""
    error = TensileError(
        f"{what}; trial {trial.number}, job {trial.job}: {trial.error_message}", hint=trial.error_hint or ""
    )
    error.sqlstate = trial.error_sqlstate or error.sqlstate
    return error
