"""The budget that a plan keeps within: a size, or a share of eager's peak; and the device that has it."""

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from tensile_db.commands.console import err, step
from tensile_db.commands.sizes import MOST_NBYTES, parse_nbytes
from tensile_db.errors import InvalidRequest, format_nbytes
from tensile_db.worker.devices.names import is_cuda

if TYPE_CHECKING:
    from tensile_db.graph import StepGraph
    from tensile_db.scheduler.plan import DeviceSpec

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
#: More is a slip, and its size in bytes no number for a column.
_MOST_PERCENT = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class EagersShare:
    """A share of what eager PyTorch holds at its peak, which is known once the network is captured."""

    percent: Fraction

    def nbytes_of(self, peak_nbytes: int) -> int:
        """Return so much of eager's peak, rounded down, at least one byte."""
        return min(MOST_NBYTES, max(1, int(peak_nbytes * self.percent / 100)))


def parse_budget(text: str) -> int | EagersShare:
    """Return a budget: bytes of '2GiB' and what else is a size, or the share of '50%' or '33.3%'.

    Raises InvalidRequest.
    """
    if "%" not in text:
        return parse_nbytes(text)
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f'"{text}" is no share', hint="Write 50% or 33.3%, of eager's peak.")
    percent = Decimal(match[1])
    if percent == 0:
        raise InvalidRequest(f'"{text}" is no share', hint="It must be more than 0% of eager's peak.")
    if percent > _MOST_PERCENT:
        raise InvalidRequest(
            f'"{text}" is no share', hint="Eager itself needs 100%: give less, e.g. 50%, or a size."
        )
    return EagersShare(percent=Fraction(percent))


def open_within(name: str, budget: int | EagersShare | None, threads: int | None) -> "DeviceSpec":
    """Return the device, its memory the budget where that is a size, else all that it has.

    Raises UnknownName, InvalidRequest, NoSuchDevice.
    """
    budget_nbytes = budget if isinstance(budget, int) else None
    if name == "cpu" or is_cuda(name):
        with step("measuring the device"):
            from tensile_db.worker.config import WorkerConfig
            from tensile_db.worker.devices.opening import open_device

            config = WorkerConfig(dsn="", device=name, memory_nbytes=budget_nbytes, threads=threads)
            opened = open_device(config)
            opened.close()
        spec = opened.spec
    else:
        from tensile_db.machine_files import find_machine

        spec = find_machine(name)
    if budget_nbytes is None:
        return spec
    _note_beyond(spec, budget_nbytes)
    return replace(spec, memory_nbytes=budget_nbytes)


def with_share(spec: "DeviceSpec", share: EagersShare, graph: "StepGraph") -> "DeviceSpec":
    """Return the device with a share of the graph's peak in eager as its memory."""
    from tensile_db.scheduler.policies import vanilla

    peak_nbytes = vanilla.peak_nbytes(graph)
    budget_nbytes = share.nbytes_of(peak_nbytes)
    _note_beyond(spec, budget_nbytes)
    if budget_nbytes > peak_nbytes:
        err.print(
            f"Note: eager holds no more than {format_nbytes(peak_nbytes)}, which is 100%.", soft_wrap=True
        )
    return replace(spec, memory_nbytes=budget_nbytes)


def _note_beyond(spec: "DeviceSpec", budget_nbytes: int) -> None:
    """Tell that a budget is more than there is: one may plan for what one does not have."""
    name, memory_nbytes = spec.name, spec.memory_nbytes
    if name == "cpu":
        from tensile_db.worker.host import host_memory_nbytes

        # The device's memory is what was asked for, or what is free at the moment.
        name, memory_nbytes = "this machine", host_memory_nbytes()
    if budget_nbytes > memory_nbytes:
        message = f"Note: {name} has no more than {format_nbytes(memory_nbytes)}."
        err.print(message, soft_wrap=True, markup=False)
