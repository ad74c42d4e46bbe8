"""Values of a JSON document that anybody may have written, each with its place, which errors name."""

from collections.abc import Iterator

from tensile_db.errors import InvalidRequest, format_json

#: No number is larger: sums of a few still are 64-bit integers.
MOST = 2**62

#: Up to here floats have every whole number.
EXACT = 2**53

_HINT = "docs/plan_format.md says what a plan holds, and `tensile-db plan ... --json` prints one."


class Json:
    """A value and its place, e.g. "graph.ops[3].reads"."""

    __slots__ = ("_key", "_parent", "_value")

    def __init__(self, value: object, parent: "Json | None" = None, key: str | int = "") -> None:
        self._value = value
        self._parent = parent
        self._key = key

    @property
    def place(self) -> str:
        """Where in the document it stands."""
        if self._parent is None:
            return "the document"
        # Of the document itself nothing need be said.
        above = self._parent.place if self._parent.has_place else ""
        if isinstance(self._key, int):
            return f"{above}[{self._key}]"
        return f"{above}.{self._key}" if above else self._key

    @property
    def has_place(self) -> bool:
        """Whether it is a part of the document."""
        return self._parent is not None

    def __getitem__(self, key: str) -> "Json":
        found = self.find(key)
        if found is None:
            raise invalid(f"{self.place} does not say {key}")
        return found

    def find(self, key: str) -> "Json | None":
        """Return the value of a key that may be missing; null is as good as missing."""
        if not isinstance(self._value, dict):
            raise self._no("an object")
        return None if self._value.get(key) is None else Json(self._value[key], self, key)

    def nullable(self, key: str) -> "Json | None":
        """Return the value of a key that must be there, or None for null."""
        if isinstance(self._value, dict) and key in self._value and self._value[key] is None:
            return None
        return self[key]

    def __iter__(self) -> Iterator["Json"]:
        if not isinstance(self._value, list):
            raise self._no("a list")
        for index, value in enumerate(self._value):
            yield Json(value, self, index)

    def whole(self, *, least: int = 0) -> int:
        """Return a whole number."""
        value = _whole(self._value)
        if value is not None and least <= value <= MOST:
            return value
        raise self._no(f"a whole number from {least} to 2^62")

    def number(self) -> float:
        """Return a finite number."""
        value = self._value
        # What is no number is no less than anything, either.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST:
            return value
        raise self._no("a finite number")

    def place_in(self, count: int, things: str) -> int:
        """Return an id, which is a place in a list of so many things."""
        value = _whole(self._value)
        if value is not None and 0 <= value < count:
            return value
        raise self._no(f"the id of one of the {count} {things}")

    def places_in(self, count: int, things: str) -> list[int]:
        """Return ids, as listed; none comes twice."""
        ids: dict[int, None] = {}
        for each in self:
            found = each.place_in(count, things)
            if found in ids:
                raise invalid(f"{self.place} has {found} twice")
            ids[found] = None
        return list(ids)

    def flag(self) -> bool:
        """Return true or false."""
        if isinstance(self._value, bool):
            return self._value
        raise self._no("true or false")

    def text(self) -> str:
        """Return text; it is one line, for it is printed."""
        if isinstance(self._value, str) and self._value.isprintable():
            return self._value
        raise self._no("a line of text")

    def one_of(self, names: list[str]) -> str:
        """Return one of these names."""
        if isinstance(self._value, str) and self._value in names:
            return self._value
        raise self._no(f"one of {', '.join(names)}")

    def _no(self, wanted: str) -> InvalidRequest:
        return invalid(f"{self.place} is {_said(self._value)}, not {wanted}")


def invalid(message: str) -> InvalidRequest:
    """Return the error of a document that is not as it must be."""
    return InvalidRequest(message, hint=_HINT)


def _whole(value: object) -> int | None:
    """Return a whole number, None for what is none.

    JSON does not tell 1 from 1.0, and some programs write the latter.  Beyond 2^53 a float may stand for a
    whole number beside it.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _said(value: object) -> str:
    """Return a value for a message; what may be large or deep is only called by its kind."""
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else format_json(value)
