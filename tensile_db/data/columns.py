"""What a column is, how the server sends it, and what becomes of it here.

A column that has no plain binary form is cast by the server, so that parsing knows only four forms.

Source: the send functions in PostgreSQL's src/backend/utils/adt; array_send() for arrays.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from tensile_db.udf.sql_text import as_identifier


class Form(StrEnum):
    """How a value lies in the COPY stream."""

    #: As many bytes in every row: a number, a boolean, a row's place.
    FIXED = "fixed"
    #: A header and its elements, each with its length.
    ARRAY = "array"
    #: As many bytes as the row has.
    BYTES = "bytes"
    #: The same, UTF-8.
    TEXT = "text"


class Nulls(StrEnum):
    """What becomes of a row whose column is NULL."""

    #: It is refused.
    REFUSED = "refused"
    #: It is refused; the hint says how such rows can be taken.
    REFUSED_WITH_OPTION = "refused_with_option"
    #: It is refused; the hint says how such rows can be left out.  Of a target that is learned.
    REFUSED_AS_TARGET = "refused_as_target"
    #: It is not read.  Of a target.
    LEFT_OUT = "left_out"
    #: It is kept: as NaN among numbers, as NULL_TEXT among texts.
    KEPT = "kept"


#: Stands for NULL among texts: no UTF-8.
NULL_TEXT = b"\xffNULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a source, to be read."""

    name: str
    form: Form
    #: Of one element, big-endian as sent; numpy's notation.  Empty for bytes and text.
    wire: str = ""
    #: The type to which the server casts, within pg_catalog; empty where it need not.
    cast: str = ""
    #: The type of a time, which the server sends as seconds: date, time, timetz, timestamp, timestamptz or
    #: interval; else empty.
    time: str = ""
    #: Whether its values are whole numbers.
    is_integer: bool = False
    #: Whether its values are truth values, kept as 0 and 1.
    is_boolean: bool = False
    #: Of columns of numbers and texts, and of targets; arrays with NULLs and images that are NULL are always
    #: refused.
    nulls: Nulls = Nulls.REFUSED

    @property
    def keeps_nulls(self) -> bool:
        """Whether its values may be NULL."""
        return self.nulls is Nulls.KEPT

    @property
    def quoted(self) -> str:
        """Its name as SQL has it, for hints that people copy."""
        return as_identifier(self.name)

    @property
    def wire_dtype(self) -> np.dtype[np.generic]:
        """The dtype of one element as sent."""
        return np.dtype(self.wire)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of one element as kept: native byte order; truth values are uint8, in arrays bool.

        Where NULLs are kept, whole numbers and truth values are float64, for others have no NaN.
        """
        native = self.wire_dtype.newbyteorder("=")
        return np.dtype(np.float64) if self.keeps_nulls and native.kind in "iu" else native


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """The values of a column of bytes or text, for some rows.

    data: uint8, all values, one after another.
    offsets: int64 [rows + 1]; value i is data[offsets[i]:offsets[i + 1]].
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()


#: Dtypes of kept values all of which float32 holds exactly.
EXACT_IN_FLOAT32 = (np.bool_, np.uint8, np.int16, np.float32)

#: A row's place in a table: block and offset, as sent (tidsend).
TID_WIRE = "V6"
_TID = np.dtype([("block", ">u4"), ("offset", ">u2")])


def tid_texts(values: npt.NDArray[np.void]) -> list[str]:
    """Return rows' places as PostgreSQL writes them: (block,offset)."""
    return [f"({block},{offset})" for block, offset in np.ascontiguousarray(values).view(_TID).tolist()]


_BOOL, _BYTEA, _TEXT, _NUMERIC, _NUMERICS = 16, 17, 25, 1700, 1231

#: By type OID (src/include/catalog/pg_type.dat).
_NUMBERS = {_BOOL: "u1", 21: ">i2", 23: ">i4", 20: ">i8", 700: ">f4", 701: ">f8", _NUMERIC: ">f8"}
#: Truth values in arrays are kept apart from bytes, which are pixels: to resize these is to round them.
_ARRAYS = {1000: "?", 1005: ">i2", 1007: ">i4", 1016: ">i8", 1021: ">f4", 1022: ">f8", _NUMERICS: ">f8"}
_CASTS = {_NUMERIC: "float8", _NUMERICS: "float8[]"}
_TIMES = {
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamptz",
    1186: "interval",
    1266: "timetz",
}
_TEXTS = frozenset({18, 19, _TEXT, 1042, 1043})  # "char", name, text, bpchar, varchar


def column(name: str, type_oid: int, *, is_enum: bool = False) -> Column | None:
    """Return how to read a column, or None where its type is neither numbers, bytes, text nor a time.

    type_oid: of the type beneath any domains.
    """
    if type_oid == _BYTEA:
        return Column(name=name, form=Form.BYTES)
    if is_enum or type_oid in _TEXTS:
        return Column(name=name, form=Form.TEXT, cast="" if type_oid == _TEXT else "text")
    if type_oid in _TIMES:
        return Column(name=name, form=Form.FIXED, wire=">f8", time=_TIMES[type_oid])
    form, types = (Form.ARRAY, _ARRAYS) if type_oid in _ARRAYS else (Form.FIXED, _NUMBERS)
    if (wire := types.get(type_oid)) is None:
        return None
    return Column(
        name=name,
        form=form,
        wire=wire,
        cast=_CASTS.get(type_oid, ""),
        is_integer=wire.startswith(">i"),
        is_boolean=type_oid == _BOOL,
    )
