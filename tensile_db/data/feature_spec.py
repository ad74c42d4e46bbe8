"""How features are made from a row: kept with the model, so that predictions make them alike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tensile_db.data.column_encodings import (
    Categories,
    ColumnEncoding,
    Number,
    encoding_from_json,
    feature_columns,
)
from tensile_db.data.columns import Nulls
from tensile_db.errors import InvalidRequest

#: 1: no column has an encoding, which older versions read, too; 2: all have.
FORMATS = (1, 2)

Kind = Literal["image", "vector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpec:
    """From columns to float32 features, (value - mean) / scale.

    An image is resized to `size` and has `channels` channels, which grey values fill alike; a vector has one
    place for each numeric column, or for each element of an array, or as many as each column's encoding has.
    """

    kind: Kind
    #: Names of the columns, in order.
    columns: tuple[str, ...]
    #: Of one row as read: (height, width, channels) of an image, (features,) of a vector.
    source_shape: tuple[int, ...]
    #: Whether the bytes are the pixels themselves, uint8 of `source_shape`; else PNG, JPEG or the like.
    raw: bool
    #: Whether pixels come as (channels, height, width) instead.
    channels_first: bool = False
    #: (height, width) of the network's images; () for a vector.
    size: tuple[int, ...]
    #: Channels of the network's images; 0 for a vector.
    channels: int
    #: Of the training rows, in the source's units: for each source channel, or each feature; 0 and 1
    #: for those that are 0 or 1 (column_encodings.py).
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    #: numpy's name of what each column's elements were read as, uint8 for bytes, and for boolean[] in models
    #: that were made before it was bool; () in models that were made before it was kept.
    dtypes: tuple[str, ...] = ()
    #: Of each column, where any is of texts or times, or may be NULL; else ().
    encodings: tuple[ColumnEncoding, ...] = ()
    #: Whether columns may be NULL.
    takes_nulls: bool = False

    @property
    def is_array(self) -> bool:
        """Whether features are the elements of one column's arrays, and no image."""
        is_single = len(self.columns) == 1 and not self.encodings
        return self.kind == "vector" and is_single and self.source_shape != (1,)

    @property
    def nulls(self) -> Nulls:
        """What becomes of a row whose column is NULL."""
        return Nulls.KEPT if self.takes_nulls else Nulls.REFUSED

    def encoding_of(self, place: int) -> ColumnEncoding:
        """Return how the column of that place becomes features."""
        return self.encodings[place] if self.encodings else Number()

    def time_of(self, place: int) -> str:
        """Return the type of a column of times; empty of others."""
        encoding = self.encoding_of(place)
        return encoding.time if isinstance(encoding, Number) else ""

    def has_categories(self, place: int) -> bool:
        """Whether the column of that place is one of texts."""
        return isinstance(self.encoding_of(place), Categories)

    @property
    def feature_columns(self) -> Sequence[str]:
        """The column's name for each feature; the one column's for arrays and images."""
        return feature_columns(self.columns, self.encodings) if self.encodings else self.columns

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one row for the network: (channels, height, width) or (features,)."""
        return (self.channels, *self.size) if self.kind == "image" else self.source_shape

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """`source_shape` in the order in which pixels come."""
        if not self.channels_first:
            return self.source_shape
        height, width, channels = self.source_shape
        return channels, height, width

    @property
    def is_file(self) -> bool:
        """Whether a row is an image's file: PNG, JPEG or the like."""
        return self.kind == "image" and not self.raw

    def to_json(self) -> dict[str, Any]:
        """Return an object for the catalog."""
        encodings = [encoding.to_json() for encoding in self.encodings]
        return {"format": 2 if self.encodings else 1} | asdict(self) | {"encodings": encodings}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FeatureSpec":
        """Return the spec that `to_json` wrote.  Raises InvalidRequest for another format."""
        if data.get("format") not in FORMATS:
            raise InvalidRequest(
                f"the model's features have format {data.get('format')!r}, but this version reads"
                f" {' and '.join(map(str, FORMATS))}",
                hint="Train the model again, or use the version of tensile_db that made it.",
            )
        return cls(
            kind=data["kind"],
            columns=tuple(data["columns"]),
            source_shape=tuple(data["source_shape"]),
            raw=data["raw"],
            channels_first=data.get("channels_first", False),
            size=tuple(data["size"]),
            channels=data["channels"],
            mean=tuple(data["mean"]),
            scale=tuple(data["scale"]),
            dtypes=tuple(data.get("dtypes", ())),
            encodings=tuple(map(encoding_from_json, data.get("encodings", ()))),
            takes_nulls=data.get("takes_nulls", False),
        )
