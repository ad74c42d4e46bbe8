"""What a network's own code raises, told as the architecture's fault and not as a defect of the capture.

An exception is the network's unless it comes from the capture's own code.  Where the network is somebody's
package, the file and line are theirs: the last of that package, or, where it has none or is not known, the
last that are neither PyTorch's, nor timm's, nor Python's.

Source: ours.
"""

import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from tensile_db.capture.fakes import correcting
from tensile_db.errors import InvalidRequest, format_value

_OUR_ROOT = __name__.partition(".")[0]
#: Of packages whose code runs on the network's behalf.
_NOBODYS = sys.stdlib_module_names | {"numpy", "torch", ""}
#: Of packages whose lines say nothing to who wrote the network.
_NOT_THEIRS = _NOBODYS | {"timm", "torchvision", _OUR_ROOT}
#: What a batch of an unfit shape ends in, wherever that shows.
_OF_UNFIT_SHAPES = (RuntimeError, ValueError, TypeError, AssertionError, IndexError)

_IN_PLACE = ("modified by an inplace operation", "being used in an in-place operation")


def named(architecture: str | None) -> str:
    """Return an architecture as the subject of a sentence; None: it has no name."""
    if architecture is None:
        return "the architecture"
    kind = "network" if is_function(architecture) else "architecture"
    return f'{kind} "{format_value(architecture)}"'


def cannot_run(
    error: BaseException, architecture: str | None, shape: Sequence[int], *, package: str | None = None
) -> InvalidRequest | None:
    """Return what is to be said of an exception of a network's step; None where it is the capture's own.

    shape: of the batch; package: that offers the network, its topmost name.
    """
    if not isinstance(error, _OF_UNFIT_SHAPES) and _is_ours(error):
        return None
    place = where(error, package)
    who, what = named(architecture), f"{said(error)}{place}"
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return InvalidRequest(
            f"{who} depends on its tensors' values, which a captured step does not have: {what}",
            hint="Use operations on tensors, e.g. torch.where, instead of .item(), conditions on tensors, and"
            " masks as indices.",
        )
    return InvalidRequest(
        f"{who} cannot run on batches of {' x '.join(str(size) for size in shape)}: {what}",
        hint=_hint(error, architecture, place),
    )


def said(error: BaseException) -> str:
    """Return an exception's first line, with its type where the line alone would not be understood."""
    kind = type(error).__name__
    lines = str(error).strip().splitlines()
    if not lines:
        return kind
    # PyTorch's advice is for who can run the step in its debugger.
    first_line = re.split(r"\s?Hint: ", lines[0])[0]
    return first_line if isinstance(error, RuntimeError | ValueError) else f"{kind}: {first_line}"


def where(error: BaseException, package: str | None) -> str:
    """Return the network's own file and line, e.g. " (their_package/networks.py:12)"; "" if it has none.

    package: that offers it.  Where none is known, or no line is of it, that of the last other package.
    """
    passed = list(reversed(list(traceback.walk_tb(error.__traceback__))))
    others = [(frame, line) for frame, line in passed if _root(frame) not in _NOT_THEIRS]
    own = [(frame, line) for frame, line in others if _root(frame) == package]
    for frame, line in own or others:
        return f" ({_file(frame)}:{line})"
    return ""


def is_function(architecture: str | None) -> bool:
    """Tell whether it is `module:function`, which commands take for a network of one's own."""
    return architecture is not None and ":" in architecture


def top_package(target: str) -> str:
    """Return the topmost name of the module in `module:function`."""
    return target.partition(":")[0].partition(".")[0].strip()


def _hint(error: BaseException, architecture: str | None, place: str) -> str:
    text = str(error)
    if any(part in text for part in _IN_PLACE):
        return "Use an operation that makes a new tensor there, e.g. relu instead of relu_ or inplace=True."
    if "numpy() is not supported" in text:
        return "Use PyTorch's operations alone: tensors of a step that is captured have no values for NumPy."
    if not isinstance(error, _OF_UNFIT_SHAPES):
        return "Correct the architecture's own code."
    if is_function(architecture):
        return "Correct the network's own code, or the row that its function returns."
    otherwise = "correct the architecture's own code" if place else "another architecture"
    return f"Use another image_size or batch_size, or {otherwise}."


def _is_ours(error: BaseException) -> bool:
    """Tell whether the innermost code that is not on another's behalf is the capture's."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_globals.get("__name__")
        if _root(frame) not in _NOBODYS and name != correcting.__name__:
            return _root(frame) == _OUR_ROOT
    return False


def _root(frame: FrameType) -> str:
    """Return the package that the code is of; "" for what torch.fx and others make as they run."""
    if frame.f_code.co_filename.startswith("<"):
        return ""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _file(frame: FrameType) -> str:
    """Return the file from its package's folder on."""
    path = Path(frame.f_code.co_filename)
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1
    return "/".join(path.parts[-depth - (path.name == "__init__.py") :])
