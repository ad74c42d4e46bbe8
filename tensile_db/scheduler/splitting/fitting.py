"""Splits with which no op needs more than there is; or the refusal where there are none.

Source: ours.
"""

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec, Split
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.choice import Splitter
from tensile_db.scheduler.splitting.refusal import split_hint


def fitting_splits(
    request: JobRequest, device: DeviceSpec, limit_nbytes: int, *, keeps_bits: bool = False
) -> tuple[Split, ...]:
    """Return splits with which no op of the job needs more than the limit, in bytes.

    keeps_bits: only splits that change no result.
    Raises DoesNotFit: with what some op needs however it is split, where that is more than the limit, which
    is seen at once; else with what the splits that come closest need.
    """
    splitter = Splitter(request, device, keeps_bits=keeps_bits)
    splits: tuple[Split, ...] = ()
    needed_nbytes = splitter.least_nbytes()
    if needed_nbytes <= limit_nbytes:
        splits, needed_nbytes = splitter.splits_within(limit_nbytes)
    if needed_nbytes > limit_nbytes:
        hint = split_hint(request.graph, limit_nbytes, keeps_bits=keeps_bits)
        raise DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=limit_nbytes, hint=hint)
    return splits
