"""A function of one's own for the commands that plan: what a module has, by `module:function`.

What it prints goes to standard error: results alone are on the other.  For commands alone: a worker runs no
code that a request names.
"""

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from tensile_db.errors import InvalidRequest, TensileError, format_value

_Result = TypeVar("_Result")


def load(kind: str, name: str, *, hint: str) -> Callable[..., Any]:
    """Return the function, looked up from where the command runs, too.

    kind: what it is meant as, e.g. "policy"; hint: where to see one.
    Raises InvalidRequest where there is none.
    """
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise InvalidRequest(
            f'{kind} "{format_value(name)}" names no module and function', hint="Write module:function."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        # Last, so that nothing there takes an installed package's place.
        sys.path.append(here)
    try:
        with redirect_stdout(sys.stderr):
            found = importlib.import_module(module)
            function = getattr(found, attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise failure(kind, name, error) from None
        raise InvalidRequest(
            f'{kind} "{format_value(name)}": there is no module {format_value(module)}',
            hint=f"It is looked for in {here} and among the installed packages.",
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever their module raises
        raise failure(kind, name, error) from None
    if not callable(function):
        if function is None and not _is_of(found, here) and os.path.isfile(f"{module}.py"):  # noqa: PTH113
            raise InvalidRequest(
                f'{kind} "{format_value(name)}": another module, of Python or installed, is called {module}',
                hint=f"Give {module}.py another name.",
            )
        what = "no function" if function is None else "something else than a function"
        raise InvalidRequest(f'{kind} "{format_value(name)}": the module has {what} there', hint=hint)
    made: Callable[..., Any] = function
    return made


def _is_of(module: ModuleType, folder: str) -> bool:
    """Tell whether a module's file lies in a folder."""
    return (getattr(module, "__file__", None) or "").startswith(f"{folder}/")


def require_no_module(kind: str, name: str, *, example: str) -> None:
    """Raise InvalidRequest where a name is that of a file here, of which no function is named.

    example: what such a function may be called.
    """
    # Unlike Path's, this is False for a name too long for a file.
    if name.isidentifier() and os.path.isfile(f"{name}.py"):  # noqa: PTH113
        raise InvalidRequest(
            f'{kind} "{name}" names no function of {name}.py',
            hint=f"Write {name}:{example}, if it is called {example}.",
        )


def call(kind: str, name: str, function: Callable[[], _Result]) -> _Result:
    """Return what their function returns.

    kind, name: as of `load`.
    Raises our own errors as they are, and InvalidRequest for whatever else it raises.
    """
    try:
        with redirect_stdout(sys.stderr):
            return function()
    except TensileError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever their function raises
        raise failure(kind, name, error) from None


def failure(kind: str, name: str, error: BaseException, what: str = "failed") -> InvalidRequest:
    """Return what is to be said of an exception of theirs, with their file and line where it has them.

    kind, name: as of `load`; what: it did, e.g. "failed".
    """
    # Not above, for it waits for PyTorch.
    from tensile_db.capture.networks.own_errors import said, top_package, where

    return InvalidRequest(f'{kind} "{name}" {what}: {said(error)}{where(error, top_package(name))}')
