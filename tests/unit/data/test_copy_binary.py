"""Rows as the server sends them: what is parsed, whichever way, is what was sent."""

import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.data.columns import NULL_TEXT, Column, Form, Nulls, Variable
from tensile_db.data.copy_binary import SIGNATURE, BadRow, BlockParser, fields_of, strip_header
from tensile_db.errors import BadData, NullInData, RaggedArray

WHOLE = Column(name="whole", form=Form.FIXED, wire=">i4", is_integer=True)
FRACTION = Column(name="fraction", form=Form.FIXED, wire=">f8")
ARRAY = Column(name="pixels", form=Form.ARRAY, wire=">f4")
BYTES = Column(name="image", form=Form.BYTES)
TEXT = Column(name="label", form=Form.TEXT)


def _array(values, *, flags=0, dimensions=None, lower=1):
    """Return an array as array_send() writes it; None among the values is a NULL."""
    dimensions = [len(values)] if dimensions is None else dimensions
    head = struct.pack(">iii", len(dimensions), flags, 700)
    head += b"".join(struct.pack(">ii", length, lower) for length in dimensions)
    return head + b"".join(
        struct.pack(">i", -1) if value is None else struct.pack(">if", 4, value) for value in values
    )


def _row(*fields):
    """Return a row as COPY and record_send() write it; None is a NULL."""
    body = struct.pack(">i", len(fields)) + b"".join(
        struct.pack(">ii", 0, -1 if field is None else len(field)) + (field or b"") for field in fields
    )
    return struct.pack(">hi", 1, len(body)) + body


def _whole(value):
    return struct.pack(">i", value)


_ROWS = st.integers(1, 4).flatmap(
    lambda length: st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1),
            st.floats(allow_nan=False),
            st.lists(st.floats(width=32, allow_nan=False), min_size=length, max_size=length),
            st.binary(max_size=5),
        ),
        min_size=1,
        max_size=9,
    )
)


@pytest.mark.slow
@given(rows=_ROWS, has_bytes=st.booleans(), cut=st.integers(0, 9), odd_flags=st.sets(st.integers(0, 8)))
def test_what_is_parsed_is_what_was_sent(rows, has_bytes, cut, odd_flags):
    columns = [WHOLE, FRACTION, ARRAY, *([BYTES] if has_bytes else [])]
    sent = [
        _row(
            _whole(whole),
            struct.pack(">d", fraction),
            # An array that once held a NULL still says that it may.
            _array(array, flags=int(place in odd_flags)),
            *([data] if has_bytes else []),
        )
        for place, (whole, fraction, array, data) in enumerate(rows)
    ]
    event("walked" if has_bytes or odd_flags else "one stride")
    parser = BlockParser(columns)
    blocks = [parser.parse(block) for block in (sent[:cut], sent[cut:]) if block]
    parts = list(zip(*blocks, strict=True))
    assert np.concatenate(parts[0]).tolist() == [row[0] for row in rows]
    assert np.concatenate(parts[1]).tolist() == [row[1] for row in rows]
    assert np.concatenate(parts[2]).tolist() == [row[2] for row in rows]
    found = [values[row] for part in parts[3:] for values in part for row in range(len(values))]
    assert found == ([row[3] for row in rows] if has_bytes else [])


def test_arrays_of_several_dimensions_keep_them_whatever_their_lower_bounds():
    sent = [_row(_array([1, 2, 3, 4, 5, 6], dimensions=[2, 3], lower=lower)) for lower in (1, 0, -5)]
    (values,) = BlockParser([ARRAY]).parse(sent)
    assert values.tolist() == [[[1, 2, 3], [4, 5, 6]]] * 3
    assert values.dtype == np.dtype("=f4")


def test_values_are_in_native_order_and_texts_in_one_buffer():
    whole, label = BlockParser([WHOLE, TEXT]).parse([_row(_whole(7), b"cat"), _row(_whole(-1), b"")])
    assert whole.dtype == np.int32
    assert isinstance(label, Variable)
    assert (label.data.tobytes(), label.offsets.tolist()) == (b"cat", [0, 3, 3])


_WITH_NULLS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3),
    ),
    min_size=1,
    max_size=9,
)


@pytest.mark.slow
@given(rows=_WITH_NULLS, has_text=st.booleans(), cut=st.integers(0, 9))
def test_nulls_are_kept_where_columns_keep_them(rows, has_text, cut):
    columns = [replace(column, nulls=Nulls.KEPT) for column in (WHOLE, FRACTION, TEXT)[: 2 + has_text]]
    sent = [
        _row(
            None if whole is None else _whole(whole),
            None if fraction is None else struct.pack(">d", fraction),
            *([None if text is None else text.encode()] if has_text else []),
        )
        for whole, fraction, text in rows
    ]
    event("with a NULL" if any(None in row for row in rows) else "without")
    parser = BlockParser(columns)
    blocks = [parser.parse(block) for block in (sent[:cut], sent[cut:]) if block]
    parts = list(zip(*blocks, strict=True))
    for place in range(2):
        found = np.concatenate(parts[place])
        assert found.dtype == np.float64
        want = [math.nan if row[place] is None else row[place] for row in rows]
        np.testing.assert_array_equal(found, want)
    found = [values[row] for part in parts[2:] for values in part for row in range(len(values))]
    want = [NULL_TEXT if text is None else text.encode() for _, _, text in rows]
    assert found == (want if has_text else [])


@pytest.mark.parametrize(
    ("column", "said"),
    [(FRACTION, "Or have the column's mean stand in for them:"), (TEXT, "Or learn from them, too:")],
)
def test_a_null_that_could_be_kept_is_refused_with_the_option_that_keeps_it(column, said):
    with pytest.raises(BadRow, match="holds a NULL") as refusal:
        BlockParser([replace(column, nulls=Nulls.REFUSED_WITH_OPTION)]).parse([_row(None)])
    assert refusal.value.hint.endswith(said + """ options => '{"nulls": "impute"}'.""")


GOOD = _row(_whole(1), _array([1, 2]))


@pytest.mark.parametrize(
    ("bad", "column", "error", "problem"),
    [
        (_row(None, _array([1, 2])), "whole", NullInData, "holds a NULL"),
        (_row(_whole(1), None), "pixels", NullInData, "holds a NULL"),
        (_row(_whole(1), _array([1, None], flags=1)), "pixels", NullInData, "holds an array with a NULL"),
        (_row(_whole(1), _array([1, 2, 3])), "pixels", RaggedArray, "that has 3 elements, but the first"),
        (_row(_whole(1), _array([])), "pixels", RaggedArray, "that has 0 elements"),
        (_row(_whole(1), struct.pack(">iii", 0, 0, 700)), "pixels", RaggedArray, "that is empty"),
        (
            _row(_whole(1), _array([1, 2], dimensions=[1, 2])),
            "pixels",
            RaggedArray,
            "that has 1x2 elements, but the first row's has 2",
        ),
        (_row(b"\0\1", _array([1, 2])), "whole", BadData, "changed its type"),
    ],
)
@pytest.mark.parametrize("place", [1, 2])
def test_a_row_that_cannot_be_used_is_found(bad, column, error, problem, place):
    rows = [GOOD, GOOD, GOOD]
    rows[place] = bad
    with pytest.raises(BadRow) as caught:
        BlockParser([WHOLE, ARRAY]).parse(rows)
    found = caught.value
    assert (found.row, found.column, found.error) == (place, column, error)
    assert problem in found.problem


@pytest.mark.parametrize(
    ("first", "error"), [(_row(None), NullInData), (_row(struct.pack(">iii", 0, 0, 700)), RaggedArray)]
)
def test_a_first_row_that_cannot_be_used_is_found(first, error):
    with pytest.raises(BadRow) as caught:
        BlockParser([ARRAY]).parse([first])
    assert (caught.value.row, caught.value.error) == (0, error)


def test_a_later_block_is_held_to_the_first_rows_shape():
    parser = BlockParser([ARRAY])
    parser.parse([_row(_array([1, 2]))])
    with pytest.raises(BadRow, match="has 3 elements"):
        parser.parse([_row(_array([1, 2, 3]))])


def test_rows_of_the_length_of_others_but_of_other_make_are_not_taken_for_them():
    # Two elements and a NULL are as long as one element and a fraction more: lengths decide, not sums.
    rows = [_row(_array([1.0, 2.0])), _row(_array([1.0])), _row(_array([1.0, 2.0, 3.0]))]
    assert sum(map(len, rows)) == 3 * len(rows[0])
    with pytest.raises(BadRow) as caught:
        BlockParser([ARRAY]).parse(rows)
    assert caught.value.row == 1


def test_the_header_may_be_extended_and_must_be_there():
    header = SIGNATURE + struct.pack(">ii", 0, 3) + b"xyz"
    assert strip_header(header + b"row") == b"row"
    with pytest.raises(BadData, match="binary format"):
        strip_header(b"1\tcat\n")


def test_fields_are_told_from_nulls():
    assert fields_of(_row(b"ab", None, b"")) == [b"ab", None, b""]
