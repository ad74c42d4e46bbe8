"""Rows as the server sends them, parsed into arrays a block of rows at a time, without an object per value.

A row is COPY's, of one bytea that holds what record_send() makes of the columns (snapshot.py says why): int32
columns; then for each column int32 type, int32 length, value.

A block of rows that are alike (no NULL, arrays of one shape, nothing of varying length) has a constant
stride, so it is one structured array; that every row is alike is then seen from the lengths in the
block itself.  Any other block is walked field by field, each field of all rows at once.

Source: PostgreSQL's documentation, COPY, "Binary Format"; record_send() in
src/backend/utils/adt/rowtypes.c; array_send() in src/backend/utils/adt/arrayfuncs.c for arrays: int32
dimensions, whether NULLs may follow, the element's type; for each dimension int32 length and lower bound;
then each element with its int32 length.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import NULL_TEXT, Column, Form, Nulls, Variable
from tensile_db.errors import BadData, NullInData, RaggedArray, TensileError

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
TRAILER = b"\xff\xff"

#: Signature, flags, length of the header's extension.
_HEADER_NBYTES = len(SIGNATURE) + 8

#: COPY's int16 fields and int32 length, record_send()'s int32 columns; then a column's type and length.
_ROW_HEADER_NBYTES = 10
_COLUMN_HEADER_NBYTES = 8

_INT16, _INT32 = np.dtype(">i2"), np.dtype(">i4")

#: A row, or several, as sent.
Row = bytes | bytearray | memoryview

Values = npt.NDArray[Any] | Variable


class BadRow(Exception):
    """A row that cannot be used; says neither which one for people, nor which table.

    row: its place in the block.
    problem: follows the column's name in a sentence.
    """

    def __init__(
        self, row: int, column: Column, error: type[TensileError], problem: str, *, hint: str
    ) -> None:
        super().__init__(problem)
        self.row = row
        self.column = column.name
        self.error = error
        self.problem = problem
        self.hint = hint


def strip_header(message: Row) -> Row:
    """Return what follows the header in the stream's first message: the first row, or nothing."""
    if bytes(message[: len(SIGNATURE)]) != SIGNATURE:
        raise BadData("the server did not send COPY's binary format")
    extension = int.from_bytes(message[_HEADER_NBYTES - 4 : _HEADER_NBYTES], "big")
    return message[_HEADER_NBYTES + extension :]


def fields_of(row: Row) -> list[bytes | None]:
    """Return the columns of one row as sent; None for NULL.  For messages about a row, and for tests."""
    fields: list[bytes | None] = []
    position = _ROW_HEADER_NBYTES
    while position < len(row):
        position += _COLUMN_HEADER_NBYTES
        length = int.from_bytes(row[position - 4 : position], "big", signed=True)
        fields.append(None if length < 0 else bytes(row[position : position + length]))
        position += max(length, 0)
    return fields


class BlockParser:
    """Parses the blocks of one COPY; the first row settles the shape of its arrays."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """columns: those of the COPY, in order."""
        self.columns = tuple(columns)
        #: Of each column's arrays; () for columns of other forms.
        self._dimensions: list[tuple[int, ...]] | None = None
        self._row_dtype: np.dtype[np.void] | None = None

    def parse(self, rows: Sequence[Row]) -> list[Values]:
        """Return the values of each column: native arrays [rows, *dimensions], or Variable.

        rows: at least one, each a whole row as sent.  Raises BadRow.
        """
        block = b"".join(rows)
        if self._dimensions is None:
            self._dimensions = self._settle(rows[0])
            if all(column.form in (Form.FIXED, Form.ARRAY) for column in self.columns):
                self._row_dtype = _row_dtype(self.columns, self._dimensions)
        dtype = self._row_dtype
        if dtype is not None and len(block) == dtype.itemsize * len(rows):
            records = np.frombuffer(block, dtype)
            if self._are_alike(records, self._dimensions):
                return [self._extract(records, i) for i in range(len(self.columns))]
        return self._walk(block, rows, self._dimensions)

    def _settle(self, row: Row) -> list[tuple[int, ...]]:
        """Take the arrays' dimensions from the first row."""
        settled: list[tuple[int, ...]] = []
        for column, field in zip(self.columns, fields_of(row), strict=True):
            if field is None and not column.keeps_nulls:
                raise _null(0, column)
            is_array = field is not None and column.form is Form.ARRAY
            settled.append(_dimensions(field) if field is not None and is_array else ())
            if is_array and not settled[-1]:
                raise BadRow(0, column, RaggedArray, "holds an empty array", hint=_SAME_LENGTHS)
        return settled

    def _are_alike(self, records: npt.NDArray[np.void], dimensions: list[tuple[int, ...]]) -> bool:
        """Whether every row has the stride that it was assumed to have.

        The first row begins where it was assumed to; if its lengths are the assumed ones, so does the next.
        """
        header_nbytes = 6  # fields and the length itself
        if not (
            _all_equal(records["fields"], 1)
            and _all_equal(records["nbytes"], records.dtype.itemsize - header_nbytes)
            and _all_equal(records["columns"], len(self.columns))
        ):
            return False
        for i, column in enumerate(self.columns):
            value = records[f"value{i}"]
            if not _all_equal(records[f"nbytes{i}"], value.dtype.itemsize):
                return False
            if column.form is Form.ARRAY and not (
                _have_dimensions(value, dimensions[i])
                and _all_equal(value["has_null"], 0)
                and _all_equal(value["elements"]["nbytes"], column.wire_dtype.itemsize)
            ):
                return False
        return True

    def _extract(self, records: npt.NDArray[np.void], i: int) -> npt.NDArray[Any]:
        column, value = self.columns[i], records[f"value{i}"]
        return _native(value["elements"]["value"] if column.form is Form.ARRAY else value, column)

    def _walk(self, block: bytes, rows: Sequence[Row], dimensions: list[tuple[int, ...]]) -> list[Values]:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        positions = np.cumsum(lengths) - lengths + _ROW_HEADER_NBYTES
        values: list[Values] = []
        for i, column in enumerate(self.columns):
            positions = positions + _COLUMN_HEADER_NBYTES
            field_nbytes = _gather(block, positions - 4, _INT32).astype(np.int64)
            is_null = field_nbytes < 0
            if not column.keeps_nulls and (row := _first(is_null)) is not None:
                raise _null(row, column)
            if column.form is Form.FIXED:
                is_wrong = ~is_null & (field_nbytes != column.wire_dtype.itemsize)
                if (row := _first(is_wrong)) is not None:
                    raise _changed(row, column)
                values.append(_numbers(block, positions, is_null, column))
            elif column.form is Form.ARRAY:
                values.append(_arrays(block, positions, field_nbytes, column, dimensions[i]))
            else:
                values.append(_variable(block, positions, field_nbytes))
            positions = positions + np.maximum(field_nbytes, 0)
        return values


def _row_dtype(columns: tuple[Column, ...], dimensions: list[tuple[int, ...]]) -> np.dtype[np.void]:
    layout: list[tuple[str, Any]] = [("fields", _INT16), ("nbytes", _INT32), ("columns", _INT32)]
    for i, column in enumerate(columns):
        is_array = column.form is Form.ARRAY
        value = _array_dtype(column, dimensions[i]) if is_array else column.wire_dtype
        layout += [(f"type{i}", _INT32), (f"nbytes{i}", _INT32), (f"value{i}", value)]
    return np.dtype(layout)


def _array_dtype(column: Column, dimensions: tuple[int, ...]) -> np.dtype[np.void]:
    element = np.dtype([("nbytes", _INT32), ("value", column.wire_dtype)])
    sizes = np.dtype([("length", _INT32), ("lower", _INT32)])
    return np.dtype(
        [
            ("ndim", _INT32),
            ("has_null", _INT32),
            ("type", _INT32),
            ("sizes", sizes, (len(dimensions),)),
            ("elements", element, dimensions),
        ]
    )


def _dimensions(field: bytes) -> tuple[int, ...]:
    """Return the lengths of an array's dimensions; none for an empty array."""
    count = int.from_bytes(field[:4], "big")
    return tuple(int(length) for length in np.frombuffer(field, _INT32, 2 * count, 12)[::2])


def _arrays(
    block: bytes,
    positions: npt.NDArray[np.int64],
    field_nbytes: npt.NDArray[np.int64],
    column: Column,
    dimensions: tuple[int, ...],
) -> npt.NDArray[Any]:
    """Return the arrays whose fields begin at `positions`.  Raises BadRow for a NULL or another shape."""
    # The header is looked at first: rows of another shape have another length, rows with NULLs too.
    headers = _gather(block, positions, np.dtype([("ndim", _INT32), ("flags", _INT32), ("type", _INT32)]))
    ragged = headers["ndim"] != len(dimensions)
    for place, length in enumerate(dimensions):
        # An array of fewer dimensions may end before; what is read there instead does not matter then.
        where = np.minimum(positions + 12 + 8 * place, len(block) - _INT32.itemsize)
        ragged |= _gather(block, where, _INT32) != length
    if (row := _first(ragged)) is not None:
        raise _ragged(row, block, int(positions[row]), column, dimensions)
    dtype = _array_dtype(column, dimensions)
    if (row := _first(field_nbytes != dtype.itemsize)) is not None:
        error = _changed if headers["flags"][row] == 0 else _null_within
        raise error(row, column)
    return _native(_gather(block, positions, dtype)["elements"]["value"], column)


def _numbers(
    block: bytes, positions: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_], column: Column
) -> npt.NDArray[Any]:
    """Return the numbers that begin at `positions`, NaN for NULL."""
    if not is_null.any():
        return _native(_gather(block, positions, column.wire_dtype), column)
    found = np.full(len(positions), np.nan, column.dtype)
    # A NULL has no bytes, and may be the block's last field.
    found[~is_null] = _native(_gather(block, positions[~is_null], column.wire_dtype), column)
    return found


def _variable(
    block: bytes, positions: npt.NDArray[np.int64], field_nbytes: npt.NDArray[np.int64]
) -> Variable:
    """Return the bytes that begin at `positions`, NULL_TEXT for NULL, whose length is -1."""
    offsets = np.zeros(len(field_nbytes) + 1, np.int64)
    np.cumsum(np.where(field_nbytes < 0, len(NULL_TEXT), field_nbytes), out=offsets[1:])
    whole, null = memoryview(block), memoryview(NULL_TEXT)
    ends = positions + field_nbytes
    slices = [
        whole[begin:end] if begin <= end else null
        for begin, end in zip(positions.tolist(), ends.tolist(), strict=True)
    ]
    return Variable(data=np.frombuffer(b"".join(slices), np.uint8), offsets=offsets)


def _gather(block: bytes, positions: npt.NDArray[np.int64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values of this dtype that begin at these bytes, however they are aligned."""
    raw = np.dtype((np.void, dtype.itemsize))
    everywhere = np.ndarray(len(block) - dtype.itemsize + 1, raw, block, strides=(1,))
    return everywhere[positions].view(dtype)


def _native(values: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    """Return a contiguous copy in native byte order."""
    return np.ascontiguousarray(values).astype(column.dtype)


def _all_equal(values: npt.NDArray[Any], expected: int) -> bool:
    # Compared as sent: turning every length around first takes twice as long.
    native = np.array(expected, values.dtype).view(values.dtype.newbyteorder("="))
    return bool((values.view(native.dtype) == native).all())


def _have_dimensions(arrays: npt.NDArray[np.void], dimensions: tuple[int, ...]) -> bool:
    lengths = arrays["sizes"]["length"]
    return _all_equal(arrays["ndim"], len(dimensions)) and bool((lengths == dimensions).all())


def _first(flags: npt.NDArray[np.bool_]) -> int | None:
    place = int(flags.argmax())
    return place if flags[place] else None


_SAME_LENGTHS = "All arrays of a column must have the same lengths; leave the others out by a view."


def _null(row: int, column: Column) -> BadRow:
    otherwise = ""
    if column.nulls is Nulls.REFUSED_WITH_OPTION:
        otherwise = ' Or have the column\'s mean stand in for them: options => \'{"nulls": "impute"}\'.'
        if column.form is Form.TEXT:
            otherwise = ' Or learn from them, too: options => \'{"nulls": "impute"}\'.'
    elif column.nulls is Nulls.REFUSED_AS_TARGET:
        otherwise = ' Or by an option: options => \'{"null_targets": "skip"}\'.'
    return _of_null(row, column, "holds a NULL", f"{column.quoted} IS NOT NULL", otherwise)


def _null_within(row: int, column: Column) -> BadRow:
    whole = f"NOT EXISTS (SELECT FROM unnest({column.quoted}) AS e WHERE e IS NULL)"
    return _of_null(row, column, "holds an array with a NULL", whole)


def _of_null(row: int, column: Column, problem: str, kept: str, otherwise: str = "") -> BadRow:
    hint = f"Leave such rows out by a view with WHERE {kept}, or replace the NULLs.{otherwise}"
    return BadRow(row, column, NullInData, problem, hint=hint)


def _changed(row: int, column: Column) -> BadRow:
    return BadRow(
        row, column, BadData, "changed its type while it was being read", hint="Submit the job again."
    )


def _ragged(row: int, block: bytes, position: int, column: Column, dimensions: tuple[int, ...]) -> BadRow:
    found = _dimensions(block[position:])
    sizes = f"has {_sizes(found)} elements" if found else "is empty"
    return BadRow(
        row,
        column,
        RaggedArray,
        f"holds an array that {sizes}, but the first row's has {_sizes(dimensions)}",
        hint=_SAME_LENGTHS,
    )


def _sizes(dimensions: tuple[int, ...]) -> str:
    return "x".join(str(length) for length in dimensions)
