"""The source of `tensile_db.udf` as text that goes into the database.

The server's interpreter sees no virtual environment and may run on another machine, so the modules travel
inside a function, `tensile.compile_udf`.  Their digest stands in every function that uses them: a session
that loaded older ones loads again.
"""

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@cache
def sources() -> dict[str, str]:
    """Return the source of each module that a backend needs, by its full name."""
    paths = [_PACKAGE / "errors.py", *sorted((_PACKAGE / "udf").glob("*.py"))]
    return {_module(path): path.read_text(encoding="utf-8") for path in paths if path.name != "__init__.py"}


@cache
def digest() -> str:
    """Return what tells these sources from others: 16 hexadecimal digits."""
    text = "\0".join(f"{name}\0{source}" for name, source in sources().items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fill_in(script: str) -> str:
    """Return an SQL script with `@udf_digest@` and `@udf_sources@` replaced.

    The sources become one Python dictionary in ASCII, in which no dollar quote can end.
    """
    literal = "{" + ",\n".join(f"{name!r}: {source!a}" for name, source in sources().items()) + "}"
    literal = literal.replace("$", "\\x24")
    return script.replace("@udf_sources@", literal).replace("@udf_digest@", digest())


def _module(path: Path) -> str:
    return ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts)
