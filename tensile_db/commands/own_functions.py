"""A function of one's own for the commands that plan: what a module has, by `module:function`.

What it prints goes to standard error: results alone are on the other.  For commands alone: a worker runs no
code that a request names.
"""

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tensile_db.errors import InvalidRequest, TensileError, format_value


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
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise failed(kind, name, error) from None
        raise InvalidRequest(
            f'{kind} "{format_value(name)}": there is no module {format_value(module)}',
            hint=f"It is looked for in {here} and among the installed packages.",
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever their module raises
        raise failed(kind, name, error) from None
    function = getattr(found, attribute, None)
    if not callable(function):
        what = "no function" if function is None else "something else than a function"
        raise InvalidRequest(f'{kind} "{format_value(name)}": the module has {what} there', hint=hint)
    made: Callable[..., Any] = function
    return made


def called(kind: str, name: str, function: Callable[[], Any]) -> Any:
    """Return what their function does; raise InvalidRequest for whatever it raises but our own errors."""
    try:
        with redirect_stdout(sys.stderr):
            return function()
    except TensileError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever their function raises
        raise failed(kind, name, error) from None


def failed(kind: str, name: str, error: BaseException, what: str = "failed") -> InvalidRequest:
    """Return what is to be said of an exception of theirs, with their file and line where it has them."""
    # Not above, for it waits for PyTorch.
    from tensile_db.capture.networks.own_errors import said, where

    package = name.partition(":")[0].partition(".")[0]
    return InvalidRequest(f'{kind} "{name}" {what}: {said(error)}{where(error, package)}')
