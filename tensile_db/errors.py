"""Every error a user can meet, with its SQLSTATE and a hint.

Runs in the worker, on the command line and inside PostgreSQL's own interpreter:
standard library only.

    TensileError                     XX000
    +-- InvalidRequest               22023  an option or value is wrong
    |   +-- UnknownName              22023  no such architecture, optimizer, option; suggests the nearest
    +-- UndefinedSource              42P01  no such table or view
    +-- UndefinedColumn              42703  no such column, or none that could be the target
    +-- AmbiguousTarget              42702  several columns could be the target
    +-- UndefinedModel               42704  no such model, job or version
    +-- Forbidden                    42501  no right to read a source or to touch a job
    +-- BadData                      22000  the rows cannot be trained on
    |   +-- NullInData               22004  a NULL in features or target
    |   +-- RaggedArray              2202E  arrays of different lengths
    |   +-- UndecodableImage         22P03  bytes that are no image
    |   +-- NonFiniteLoss            22003  training diverged
    +-- DoesNotFit                   53200  no plan meets the budget
    +-- DeviceOutOfMemory            53200  the device refused an allocation
    +-- DriverOutOfMemory            53200  the device's driver did
    +-- HostOutOfMemory              53200  no room left on the host for what is swapped out
    +-- DeviceLost                   58030  the device answers no more
    +-- NoSuchDevice                 58P01  no such device in this machine, or none that works
    +-- QuotaExceeded                53400
    +-- WorkerUnavailable            55000  no worker is alive
    +-- WrongState                   55000  a job is not in a state for what is asked of it
    +-- NotAtHome                    55000  the catalog was restored, and has the numbers of another database
    +-- CatalogInUse                 55006  others use the tables that an install would change
    +-- Unsupported                  0A000  not for jobs of this kind
    +-- JobCancelled                 57014
    +-- KernelFailed                 38000  an operator raised
    +-- LostLease                    40001  another attempt has taken the job over
    +-- NotInstalled                 58P01  a program, language or package that is needed is missing
    +-- LocalServerFailed            58000  the private PostgreSQL cannot be made, started or reached
    +-- InvalidPlan                  XX001  a plan failed verification: a bug, or was given to `check`
"""

import difflib
import json
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any


class TensileError(Exception):
    """A failure with an SQLSTATE, a sentence and a hint naming what to change."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidRequest(TensileError):
    """An option or value that cannot be used."""

    sqlstate = "22023"


#: How alike names must be, by difflib's ratio, for one to be meant by the other: as `size` and `image_size`
#: (0.571) are, and `grayscale` and `raw_shape` (0.556) are not.
NEAREST = 0.57

#: More known names than that are not listed.
_MOST_LISTED = 20
#: Among names of more characters than this together none that is near is looked for: it would take seconds.
_MOST_COMPARED = 100_000


class UnknownName(InvalidRequest):
    """A name that is not among the known ones; the hint suggests the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listed_in: str = "") -> None:
        """listed_in: where all known names are to be found, of many, e.g. "by SELECT name FROM ..."."""
        self.kind = kind
        self.name = name
        choices = sorted(known)
        self.known = tuple(choices)
        # Capital letters do not matter to who has forgotten a name.
        spelled = {choice.casefold(): choice for choice in choices}
        # One that is the same but for them is the one that was meant.
        most = 1 if name.casefold() in spelled else 3
        compared = spelled if sum(map(len, spelled)) <= _MOST_COMPARED else ()
        nearest = difflib.get_close_matches(name.casefold(), compared, n=most, cutoff=NEAREST)
        if nearest:
            hint = "Did you mean " + " or ".join(f'"{spelled[choice]}"' for choice in nearest) + "?"
        elif len(choices) <= _MOST_LISTED:
            hint = f"Known: {', '.join(choices)}."
        else:
            hint = f"Known: {len(choices)}, {listed_in or 'among them ' + ', '.join(choices[:_MOST_LISTED])}."
        super().__init__(f'unknown {kind} "{format_value(name)}"', hint=hint)


class UndefinedSource(TensileError):
    """No such table or view."""

    sqlstate = "42P01"


class UndefinedColumn(TensileError):
    """No such column, or none that could be the target."""

    sqlstate = "42703"


class AmbiguousTarget(TensileError):
    """Several columns could be the target; or models, or weights, be those of a name."""

    sqlstate = "42702"


class UndefinedModel(TensileError):
    """No such model, version, job or pretrained weights."""

    sqlstate = "42704"


class Forbidden(TensileError):
    """The caller lacks a right."""

    sqlstate = "42501"


class BadData(TensileError):
    """The rows cannot be trained on."""

    sqlstate = "22000"


class NullInData(BadData):
    """A NULL in a feature or target column."""

    sqlstate = "22004"


class RaggedArray(BadData):
    """Arrays of different lengths in one column."""

    sqlstate = "2202E"


class UndecodableImage(BadData):
    """Bytes that no image decoder reads."""

    sqlstate = "22P03"


class NonFiniteLoss(BadData):
    """The loss became NaN or infinite."""

    sqlstate = "22003"


class DoesNotFit(TensileError):
    """No plan keeps the job within its budget.

    needed_nbytes: device memory; no plan is known that does with less.
    budget_nbytes: what there was.
    """

    sqlstate = "53200"

    def __init__(self, *, needed_nbytes: int, budget_nbytes: int, hint: str = "") -> None:
        self.needed_nbytes = needed_nbytes
        self.budget_nbytes = budget_nbytes
        super().__init__(
            f"the job needs at least {format_nbytes(needed_nbytes, math.ceil)} of device memory,"
            f" but the budget is {format_nbytes(budget_nbytes, math.floor)}",
            hint=hint or "Use a smaller batch_size or image_size, or a worker with more --memory.",
        )


class DeviceOutOfMemory(TensileError):
    """The device refused an allocation that would exceed its capacity."""

    sqlstate = "53200"

    def __init__(self, *, wanted_nbytes: int, used_nbytes: int, capacity_nbytes: int) -> None:
        self.wanted_nbytes = wanted_nbytes
        self.used_nbytes = used_nbytes
        self.capacity_nbytes = capacity_nbytes
        super().__init__(
            f"device out of memory: {_no_room(wanted_nbytes, used_nbytes, capacity_nbytes)}",
            hint="Use a smaller batch_size, or a worker with more --memory.",
        )


class DriverOutOfMemory(TensileError):
    """The device's driver refused memory that the accounts had room for, or know nothing of."""

    sqlstate = "53200"

    def __init__(self, said: str) -> None:
        super().__init__(
            f"the device's driver has no memory left: {said}",
            hint="Other programs may hold the device's memory, or the host's: stop them, or give the worker"
            " less --memory.",
        )


class HostOutOfMemory(TensileError):
    """What is swapped out finds no room on the host.

    refused: within the limit, the machine had no more to give.
    """

    sqlstate = "53200"

    def __init__(
        self, *, wanted_nbytes: int, used_nbytes: int, limit_nbytes: int, refused: bool = False
    ) -> None:
        self.wanted_nbytes = wanted_nbytes
        self.used_nbytes = used_nbytes
        self.limit_nbytes = limit_nbytes
        remedy = "stop what else uses the machine's memory" if refused else "a worker with more --host-memory"
        super().__init__(
            f"host out of memory for swaps: {_no_room(wanted_nbytes, used_nbytes, limit_nbytes)}"
            + (", and the machine has no more" if refused else ""),
            hint=f"Use a smaller batch_size, fewer jobs at once, or {remedy}.",
        )


class NetworkTooLarge(TensileError):
    """The machine has no memory for the network itself."""

    sqlstate = "53200"

    def __init__(self, *, needed_nbytes: int, available_nbytes: int) -> None:
        super().__init__(
            f"the network and a copy of its weights take {format_nbytes(needed_nbytes)}, but the worker's"
            f" machine has {format_nbytes(available_nbytes)} left",
            hint="Use narrower or fewer layers, or a worker on a larger machine.",
        )


class DeviceLost(TensileError):
    """The device answers no more, or only with errors: whatever it held is gone."""

    sqlstate = "58030"

    def __init__(self, said: str) -> None:
        super().__init__(
            f"the device failed: {said}",
            hint="The worker starts again, and its other jobs go on from their checkpoints. Submit this job"
            " again; if it fails again, look at the machine's kernel log.",
        )


class NoSuchDevice(TensileError):
    """The machine has no such device, or PyTorch cannot use it."""

    sqlstate = "58P01"


class QuotaExceeded(TensileError):
    """The caller's quota is used up."""

    sqlstate = "53400"


class WorkerUnavailable(TensileError):
    """No worker is alive to run the job."""

    sqlstate = "55000"


class WrongState(TensileError):
    """A job is not in a state in which it can do what is asked of it."""

    sqlstate = "55000"


class NotAtHome(TensileError):
    """The catalog came from elsewhere, by a dump or pg_upgrade: its numbers may be those of other roles."""

    sqlstate = "55000"

    def __init__(self) -> None:
        super().__init__(
            "the catalog of tensile_db comes from another database, where roles and tables may have other"
            " numbers",
            hint="As a superuser: SELECT * FROM tensile_after_restore(); after pg_upgrade: SELECT * FROM"
            " tensile_after_restore(numbers_kept => true).",
        )


class CatalogInUse(TensileError):
    """Others' transactions use the catalog's tables, which an install would change."""

    sqlstate = "55006"


class Unsupported(TensileError):
    """Jobs of this kind, or of this source, cannot do what is asked of them."""

    sqlstate = "0A000"


class JobCancelled(TensileError):
    """The job was cancelled."""

    sqlstate = "57014"


class KernelFailed(TensileError):
    """An operator raised while it ran."""

    sqlstate = "38000"


class LostLease(TensileError):
    """Another attempt owns the job now; this one must not write."""

    sqlstate = "40001"


class NotInstalled(TensileError):
    """A program, language or package that is needed is missing."""

    sqlstate = "58P01"


class LocalServerFailed(TensileError):
    """The private PostgreSQL cannot be made, started or reached."""

    sqlstate = "58000"


class InvalidPlan(TensileError):
    """A program failed verification: a defect of ours, or of a plan that `tensile-db check` was given."""

    sqlstate = "XX001"


def format_nbytes(nbytes: int, rounded: Callable[[float], float] = round) -> str:
    """Return a size for people, e.g. 1536 -> '1.5 KiB'.

    rounded: of tenths; math.ceil where so much must be enough, math.floor where it must not be more.
    """
    if abs(nbytes) < 1024:
        return f"{nbytes} B"
    size = nbytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{rounded(10 * size) / 10:.1f} {unit}"
        size /= 1024
    return f"{rounded(10 * size) / 10:.1f} TiB"


#: A value of more characters is shortened to so many and their count; names of columns are never so long.
_LONGEST_VALUE, _SHORTENED = 80, 60
#: Whole numbers with more digits than those of bigint are rounded.
_MOST_DIGITS = 20


def format_value(value: Any) -> str:
    """Return a number or text for a message, however long it is, e.g. 10**400 -> '1e+400'."""
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        mantissa, exponent = f"{Decimal(value):.5e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{exponent}"
    text = str(value)
    if len(text) <= _LONGEST_VALUE:
        return text
    return f"{text[:_SHORTENED]}... ({len(text)} characters)"


def format_json(value: Any) -> str:
    """Return what was given as JSON, for a message, likewise."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return format_value(value if is_number else json.dumps(value, ensure_ascii=False))


def _no_room(wanted_nbytes: int, used_nbytes: int, limit_nbytes: int) -> str:
    return (
        f"{format_nbytes(wanted_nbytes)} wanted,"
        f" {format_nbytes(used_nbytes)} of {format_nbytes(limit_nbytes)} in use"
    )
