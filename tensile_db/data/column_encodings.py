"""How one column becomes features, one beside the other: what is kept of it with a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """A column of texts: a feature for each category, which is 1 in rows that hold it and else 0."""

    #: The categories, sorted by code point.
    texts: tuple[str, ...]
    #: Whether one more feature, behind them, is 1 in rows that hold NULL.
    tells_null: bool = False

    @property
    def width(self) -> int:
        """How many features these are."""
        return len(self.texts) + self.tells_null

    @property
    def are_numbers(self) -> tuple[bool, ...]:
        """Of each feature, whether it is a number to be standardised, and not 0 or 1."""
        return (False,) * self.width

    def to_json(self) -> dict[str, Any]:
        """Return an object for the catalog."""
        return {"kind": "categories", "texts": list(self.texts), "tells_null": self.tells_null}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A column of numbers, booleans or times: one feature."""

    #: What is taken in place of NULL; None: the column must not be NULL.
    fill: float | None = None
    #: Whether one more feature, behind it, is 1 in rows that hold NULL.
    tells_null: bool = False
    #: The type of a time (columns.Column.time), whose number is seconds; else empty.
    time: str = ""

    @property
    def width(self) -> int:
        """How many features these are."""
        return 1 + self.tells_null

    @property
    def are_numbers(self) -> tuple[bool, ...]:
        """Of each feature, whether it is a number to be standardised, and not 0 or 1."""
        return (True, False)[: self.width]

    def to_json(self) -> dict[str, Any]:
        """Return an object for the catalog."""
        return {"kind": "number", "fill": self.fill, "tells_null": self.tells_null, "time": self.time}


ColumnEncoding = Categories | Number


def encoding_from_json(data: Mapping[str, Any]) -> ColumnEncoding:
    """Return the encoding that `to_json` wrote."""
    if data["kind"] == "categories":
        return Categories(texts=tuple(data["texts"]), tells_null=data["tells_null"])
    # jsonb writes large fractions without a point.
    fill = None if data["fill"] is None else float(data["fill"])
    return Number(fill=fill, tells_null=data["tells_null"], time=data["time"])


def feature_columns(columns: Sequence[str], encodings: Sequence[ColumnEncoding]) -> list[str]:
    """Return the column's name for each feature; columns: names."""
    widths = [encoding.width for encoding in encodings]
    return [name for name, width in zip(columns, widths, strict=True) for _ in range(width)]
