"""Columns of texts and columns with NULLs become features, in tables and in rows by themselves alike."""

import json
import math
import struct
import tracemalloc

import numpy as np
import pytest

from tensile_db.data.as_trained import layout_as_trained
from tensile_db.data.column_encodings import Categories, Number
from tensile_db.data.columns import NULL_TEXT, Column, Form, Nulls, Variable
from tensile_db.data.encodings import MAX_CATEGORIES, find_encodings, unknown_texts
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import batch, prepare, rows_of
from tensile_db.data.find_spec import find_spec
from tensile_db.data.layout import encoded_layout
from tensile_db.data.one_row import features_of_row
from tensile_db.errors import BadData, InvalidRequest, JobCancelled, UndefinedColumn

ALL = slice(None)


def texts(*values):
    sent = [NULL_TEXT if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, sent)]).astype(np.int64)
    return Variable(data=np.frombuffer(b"".join(sent), np.uint8), offsets=offsets)


def numbers(*values, dtype=np.float32):
    return np.array([math.nan if value is None else value for value in values], dtype)


def number_column(name, *, nulls=Nulls.KEPT, wire=">f4"):
    return Column(name=name, form=Form.FIXED, wire=wire, nulls=nulls)


def text_column(name, *, nulls=Nulls.KEPT):
    return Column(name=name, form=Form.TEXT, nulls=nulls)


def found(columns, values, tmp_path, rows=ALL):
    """Return all rows' features, how they are made by those that are trained on, and what surprises."""
    trained_on = np.arange(len(values[0]))[rows]
    layout = encoded_layout(columns, find_encodings(columns, values, trained_on, str))
    made = prepare(layout, values, size=None, path=tmp_path / "features.npy", row_name=str)
    spec, surprises = find_spec(layout, values, made, trained_on, (), 0)
    return made, spec, surprises


def test_each_category_of_the_rows_trained_on_is_a_feature_and_so_is_null(tmp_path):
    columns = [text_column("city"), number_column("age")]
    values = [texts("Ulm", None, "Bern", "Ulm", "Graz"), numbers(1, None, 5, 3, 9)]
    made, spec, surprises = found(columns, values, tmp_path, slice(4))
    assert spec.encodings == (
        Categories(texts=("Bern", "Ulm"), tells_null=True),
        Number(fill=3.0, tells_null=True),
    )
    assert spec.feature_columns == ["city"] * 3 + ["age"] * 2
    assert made[np.arange(5)].tolist() == [
        [0, 1, 0, 1, 0],
        [0, 0, 1, 3, 1],
        [1, 0, 0, 5, 0],
        [0, 1, 0, 3, 0],
        [0, 0, 0, 9, 0],
    ]
    # The number alone is standardised: by a mean of 3, and a deviation of the square root of (4 + 4) / 4.
    assert spec.mean == (0, 0, 0, 3, 0)
    assert spec.scale == (1, 1, 1, pytest.approx(math.sqrt(2)), 1)
    assert spec.takes_nulls
    assert surprises == []


def test_a_column_without_nulls_has_no_feature_for_them_and_takes_them_all_the_same(tmp_path):
    columns = [text_column("city"), number_column("age")]
    made, spec, _ = found(columns, [texts("a", "b"), numbers(4, 8)], tmp_path)
    assert made[np.arange(2)].tolist() == [[1, 0, 4], [0, 1, 8]]
    values = [texts(None, "c"), numbers(None, None)]
    layout = layout_as_trained(spec, columns, values)
    later = rows_of(layout, values, None, None, str)
    assert later[np.arange(2)].tolist() == [[0, 0, 6], [0, 0, 6]]


def test_what_is_kept_with_a_model_comes_back_from_json_in_a_format_that_older_versions_refuse(tmp_path):
    _, spec, _ = found([text_column("city")], [texts("a", None, "ü")], tmp_path)
    kept = json.loads(json.dumps(spec.to_json()))
    assert kept["format"] == 2
    assert FeatureSpec.from_json(kept) == spec
    # As jsonb writes a large fraction: without a point.
    large = numbers(1e30, 3e30, None, dtype=np.float64)
    _, spec, _ = found([number_column("a", wire=">f8")], [large], tmp_path)
    kept = json.loads(json.dumps(spec.to_json()).replace("2e+30", "2" + "0" * 30))
    assert FeatureSpec.from_json(kept) == spec
    assert isinstance(FeatureSpec.from_json(kept).encodings[0].fill, float)


@pytest.mark.parametrize(
    ("nulls", "city", "age", "big"),
    [
        (Nulls.KEPT, None, None, None),
        (Nulls.REFUSED, "", 0, 0),
    ],
)
def test_a_row_by_itself_has_the_features_that_it_has_in_a_table(tmp_path, nulls, city, age, big):
    columns = [
        text_column("city", nulls=nulls),
        number_column("age", nulls=nulls),
        number_column("big", nulls=nulls, wire=">i8"),
        text_column("plan", nulls=nulls),
    ]
    cities = ["Ulm", city, "NaN", "Ulm", "a b", "Ulm"]
    ages = [0.1, 2.5, age, 4, 5, 6]
    bigs = [2**40, 1, 2, big, 3, 2**50]
    plans = ["x", "y", "x", "y", "x", "z"]
    dtype = columns[2].dtype
    values = [texts(*cities), numbers(*ages), numbers(*bigs, dtype=dtype), texts(*plans)]
    made, spec, _ = found(columns, values, tmp_path, slice(5))
    assert made.dtype == np.float64
    want = batch(made, np.arange(len(ages)), spec)
    spec = FeatureSpec.from_json(json.loads(json.dumps(spec.to_json())))
    for row in range(len(ages)):
        given = {"big": bigs[row], "plan": plans[row], "other": [], "city": cities[row], "age": ages[row]}
        listed = [given[name] for name in spec.columns]
        for form in (given, listed, [listed]):
            one = features_of_row(spec, "object", json.dumps(form).encode())
            assert one.dtype == np.float32
            np.testing.assert_array_equal(one, want[row])


def sent_array(*values):
    head = struct.pack(">iiiii", 1, 1, 701, len(values), 1)
    return head + b"".join(
        struct.pack(">i", -1) if value is None else struct.pack(">id", 8, value) for value in values
    )


def test_arrays_may_have_nulls_where_the_models_columns_may(tmp_path):
    columns = [number_column("a"), number_column("b", wire=">i4")]
    values = [numbers(1, None, 2.5), numbers(None, 7, 9, dtype=np.float64)]
    made, spec, _ = found(columns, values, tmp_path)
    want = batch(made, np.arange(3), spec)
    for row, given in enumerate([(1, None), (None, 7), (2.5, 9)]):
        np.testing.assert_array_equal(features_of_row(spec, "array", sent_array(*given)), want[row])
    with pytest.raises(InvalidRequest, match="1 value is given, but the model learned from 2 columns"):
        features_of_row(spec, "array", sent_array(None))
    with pytest.raises(InvalidRequest, match="0 values are given"):
        features_of_row(spec, "array", struct.pack(">iii", 0, 0, 701))


@pytest.mark.parametrize(
    ("form", "data", "error", "message"),
    [
        ("bytes", b"x", InvalidRequest, "learned from the columns city, age, not from images"),
        ("array", sent_array(1, 2), InvalidRequest, 'learned from texts in column "city", and an array'),
        ("object", b"[1]", InvalidRequest, "1 value is given, but the model learned from 2 columns"),
        ("object", b"7", InvalidRequest, "features given as 7 are no row"),
        ("object", b'{"age": 1}', UndefinedColumn, 'the row has no column "city"'),
        ("object", b"[1, 2]", InvalidRequest, 'column "city" is given as 1, which is no text'),
        ("object", b'[["a"], 2]', InvalidRequest, r'column "city" is given as \["a"\], which is no text'),
        ("object", b'["a", "2"]', InvalidRequest, 'column "age" is given as "2", which is no number'),
        ("object", b'["a", "Infinity"]', BadData, 'column "age" holds an infinite number'),
        ("object", b'["a", 1' + b"0" * 500 + b"]", BadData, 'column "age" holds an infinite number'),
    ],
)
def test_what_is_no_row_of_the_models_is_refused(tmp_path, form, data, error, message):
    columns = [text_column("city"), number_column("age")]
    _, spec, _ = found(columns, [texts("a", "b"), numbers(4, 8)], tmp_path)
    with pytest.raises(error, match=message):
        features_of_row(spec, form, data)


def test_a_null_is_refused_with_none_where_the_model_takes_none(tmp_path):
    columns = [text_column("city", nulls=Nulls.REFUSED), number_column("age", nulls=Nulls.REFUSED)]
    _, spec, _ = found(columns, [texts("a", "b"), numbers(4, 8)], tmp_path)
    assert not spec.takes_nulls
    assert features_of_row(spec, "object", b'["a", null]') is None
    assert features_of_row(spec, "object", b'{"age": 1, "city": null}') is None


def test_spaces_at_a_texts_end_do_not_matter_where_no_category_has_them(tmp_path):
    # As to_jsonb() of a character(5) has them, whose text has none.
    _, spec, _ = found([text_column("a")], [texts("x", "y", "y ")], tmp_path)
    assert features_of_row(spec, "object", b'["x    "]').tolist() == [1, 0, 0]
    assert features_of_row(spec, "object", b'["y "]').tolist() == [0, 0, 1]
    assert features_of_row(spec, "object", b'["y  "]').tolist() == [0, 1, 0]


def test_equal_numbers_beside_nulls_are_constant_whatever_their_mean_is_rounded_to(tmp_path):
    column = number_column("a", wire=">f8")
    _, spec, surprises = found([column], [numbers(*[0.1] * 9, None, dtype=np.float64)], tmp_path)
    assert (spec.mean[0], spec.scale[0], spec.encodings[0].fill) == (0.1, 1.0, 0.1)
    assert surprises == []


def test_the_mean_of_numbers_whose_sum_is_infinite_stands_in_for_null():
    large = numbers(*[1e308] * 9, 5e307, None, dtype=np.float64)
    (encoding,) = find_encodings([number_column("a", wire=">f8")], [large], np.arange(11), str)
    assert encoding.fill == pytest.approx(9.5e307)


def test_a_column_that_is_null_in_all_rows_tells_nothing(tmp_path):
    columns = [number_column("a"), text_column("b"), number_column("c")]
    values = [numbers(None, None), texts(None, None), numbers(1, 2)]
    made, spec, surprises = found(columns, values, tmp_path)
    assert made[np.arange(2)].tolist() == [[0, 1, 1, 1], [0, 1, 1, 2]]
    assert spec.encodings[0].fill == 0.0
    assert surprises == [
        '2 columns have one value each in all 2 rows that are trained on, and tell nothing: "a", "b"'
    ]


def test_an_infinite_number_is_refused_though_nulls_are_not(tmp_path):
    columns = [number_column("a"), number_column("b")]
    values = [numbers(1, None, 3), numbers(1, 2, math.inf)]
    for others in ([], [text_column("c")]):
        held_out = [*values, *(texts("x", "y", "x") for _ in others)]
        with pytest.raises(BadData, match='column "b" of row 2 holds an infinite number'):
            found([*columns, *others], held_out, tmp_path, slice(2))


def test_more_texts_than_categories_may_be_are_refused_by_the_rows_trained_on(tmp_path):
    values = [texts(*(str(number) for number in range(MAX_CATEGORIES + 1)))]
    _, spec, _ = found([text_column("a")], values, tmp_path, slice(MAX_CATEGORIES))
    assert spec.input_shape == (MAX_CATEGORIES,)
    with pytest.raises(BadData, match='column "a" holds 1,001 different texts, too many for categories'):
        found([text_column("a")], values, tmp_path)


def test_a_text_that_is_too_long_or_no_utf_8_is_refused(tmp_path):
    with pytest.raises(BadData, match='column "a" of row 1 holds a text of 1,002 bytes, too long for a'):
        found([text_column("a")], [texts("x", "ü" * 501)], tmp_path)
    latin = Variable(data=np.frombuffer(b"\xfcx", np.uint8), offsets=np.array([0, 1, 2]))
    with pytest.raises(BadData, match="holds a text that is not UTF-8"):
        found([text_column("a")], [latin], tmp_path)


def test_texts_that_a_model_does_not_know_are_told():
    encoding = Categories(texts=("a", "c"))
    # One that is a category but for spaces at its end is known.
    there = texts("c", "b", None, "a", "b", "a  ")
    assert unknown_texts(there, encoding) == ["b"]
    # However long one is, as many bytes are not taken for each row.
    there = texts(*["a"] * 20_000, "a" * 50_000_000, "b")
    tracemalloc.start()
    assert [len(text) for text in unknown_texts(there, encoding)] == [1001, 1]
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_nbytes < 200e6


def test_a_text_that_is_too_long_for_a_category_is_none_where_it_is_not_trained_on(tmp_path):
    column, long = text_column("a"), "x" * 1001
    made, spec, _ = found([column], [texts("x" * 1000, "y", long)], tmp_path, slice(2))
    assert made[np.arange(3)].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert features_of_row(spec, "object", json.dumps([long]).encode()).tolist() == [0, 0]


@pytest.mark.parametrize("shape", [(1,), (2,), (3,)])
def test_arrays_are_no_rows_of_a_model_of_texts_or_with_nulls(tmp_path, shape):
    arrays = Column(name="a", form=Form.ARRAY, wire=">f8")
    for column, values in ((text_column("a"), texts("x", "y")), (number_column("a"), numbers(1, None))):
        _, spec, _ = found([column], [values], tmp_path)
        assert spec.source_shape == (2,)
        with pytest.raises(InvalidRequest, match="numbers, texts or times, and not from arrays"):
            layout_as_trained(spec, [arrays], [np.zeros((4, *shape))])


def test_statistics_are_made_of_numbers_alone_and_can_be_stopped(tmp_path):
    columns = [text_column("a"), number_column("b")]
    values = [texts(*(str(row % 900) for row in range(9000))), numbers(*range(9000), dtype=np.float64)]
    encodings = find_encodings(columns, values, np.arange(9000), str)
    layout = encoded_layout(columns, encodings)
    made = prepare(layout, values, size=None, path=tmp_path / "features.npy", row_name=str)
    asked = []
    watched = made.numbers()
    assert watched.shape == (9000, 1)
    spec, _ = find_spec(layout, values, made, np.arange(9000), (), 0, lambda: asked.append(1))
    assert asked
    assert spec.mean == (*[0.0] * 900, 4499.5)

    def stop():
        raise JobCancelled("enough")

    with pytest.raises(JobCancelled):
        find_spec(layout, values, made, np.arange(9000), (), 0, stop)


def test_a_column_of_texts_that_are_all_different_is_told_of(tmp_path):
    different = texts(*(f"review {row}" for row in range(30)))
    _, _, surprises = found([text_column("a")], [different], tmp_path)
    assert surprises == [
        'column "a" has 30 different texts in 30 rows that are trained on: of other texts it tells nothing'
    ]
