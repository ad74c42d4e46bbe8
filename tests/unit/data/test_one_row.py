"""A row that is given by itself has, bit for bit, the features that it has among the rows of a table."""

import io
import json
import struct

import numpy as np
import pytest
from PIL import Image

from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import batch, prepare
from tensile_db.data.layout import find_layout
from tensile_db.data.one_row import features_of_row
from tensile_db.data.statistics import statistics
from tensile_db.errors import BadData, InvalidRequest, RaggedArray, UndecodableImage, UndefinedColumn

ROWS = 5
RANDOM = np.random.default_rng(7)


def table(columns, values, tmp_path, *, size=None, channels=0, raw_shape=None):
    """Return the features of all rows as a training has them, and how they were made."""
    layout = find_layout(
        columns, values, wants_images=size is not None, raw_shape=raw_shape, row_name=lambda row: f"{row}"
    )
    made = prepare(
        layout,
        values,
        size=size,
        channels=channels or None,
        path=tmp_path / "features.npy",
        row_name=lambda row: f"{row}",
    )
    mean, scale, _ = statistics(made, np.arange(ROWS))
    spec = FeatureSpec(
        kind=layout.kind,
        columns=tuple(column.name for column in columns),
        source_shape=layout.shape,
        raw=layout.raw,
        channels_first=layout.channels_first,
        size=size or (),
        channels=channels,
        mean=mean,
        scale=scale,
        dtypes=tuple("uint8" if isinstance(v, Variable) else v.dtype.name for v in values),
    )
    return batch(made, np.arange(ROWS), spec), FeatureSpec.from_json(json.loads(json.dumps(spec.to_json())))


def sent(values, has_null=0):
    """Return what array_send() makes of a double precision[]; None is NULL."""
    if None in values:
        head = np.array([1, 1, 701, len(values), 1], ">i4").tobytes()
        null, number = b"\xff\xff\xff\xff", b"\0\0\0\x08"
        return head + b"".join(null if v is None else number + struct.pack(">d", v) for v in values)
    values = np.asarray(values, np.float64)
    head = np.array([values.ndim, has_null, 701, *[n for size in values.shape for n in (size, 1)]], ">i4")
    elements = b"".join(b"\0\0\0\x08" + struct.pack(">d", value) for value in values.reshape(-1).tolist())
    return head.tobytes() + elements


def blobs(values):
    return Variable(
        data=np.frombuffer(b"".join(values), np.uint8),
        offsets=np.cumsum([0, *map(len, values)]).astype(np.int64),
    )


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def assert_same(found, want):
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, want)


def _in_hex(data):
    return "\\x" + data.hex()


def _escaped(data):
    """Return bytes as PostgreSQL writes them with `bytea_output = escape`."""
    return "".join(
        "\\\\" if byte == 0x5C else chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}" for byte in data
    )


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_files(tmp_path, shape, channels):
    files = [png(RANDOM.integers(0, 256, shape, np.uint8)) for _ in range(ROWS)]
    column = Column(name="image", form=Form.BYTES)
    want, spec = table([column], [blobs(files)], tmp_path, size=(6, 5), channels=channels)
    for row, file in enumerate(files):
        assert_same(features_of_row(spec, "bytes", file), want[row])
        for written in (_in_hex(file), _escaped(file)):
            for given in ({"image": written}, [written]):
                assert_same(features_of_row(spec, "object", json.dumps(given).encode()), want[row])


@pytest.mark.parametrize("raw_shape", [[4, 6], [4, 6, 3], [3, 4, 6]])
def test_bytes_that_are_pixels(tmp_path, raw_shape):
    values = [RANDOM.integers(0, 256, np.prod(raw_shape), np.uint8).tobytes() for _ in range(ROWS)]
    column = Column(name="image", form=Form.BYTES)
    want, spec = table([column], [blobs(values)], tmp_path, size=(5, 5), channels=3, raw_shape=raw_shape)
    for row, value in enumerate(values):
        assert_same(features_of_row(spec, "bytes", value), want[row])


@pytest.mark.slow
@pytest.mark.parametrize("wire", [">i2", ">i4", ">i8", ">f4", ">f8", "u1", "?"])
@pytest.mark.parametrize("size", [None, (4, 4), (3, 5)])
def test_arrays_of_any_type_although_they_come_as_double_precision(tmp_path, wire, size):
    kind = np.dtype(wire).newbyteorder("=")
    values = (RANDOM.normal(size=(ROWS, 16)) * 40).astype(kind)
    column = Column(name="pixels", form=Form.ARRAY, wire=wire)
    want, spec = table([column], [values], tmp_path, size=size, channels=1 if size else 0)
    for row in range(ROWS):
        assert_same(features_of_row(spec, "array", sent(values[row])), want[row])
        assert_same(features_of_row(spec, "array", sent(values[row].reshape(4, 4))), want[row])
        numbers = values[row].tolist()
        for given in ({"pixels": numbers}, numbers, [numbers], values[row].reshape(4, 1, 4).tolist()):
            assert_same(features_of_row(spec, "object", json.dumps(given).encode()), want[row])


@pytest.mark.parametrize("wires", [(">f4", ">f4", "u1"), (">f8", ">i4", "u1"), (">f4", ">f8", ">i2")])
def test_columns_of_numbers(tmp_path, wires):
    values = [(RANDOM.random(ROWS) * 3 + 1000).astype(np.dtype(wire).newbyteorder("=")) for wire in wires]
    columns = [Column(name=f"x{place}", form=Form.FIXED, wire=wire) for place, wire in enumerate(wires, 1)]
    want, spec = table(columns, values, tmp_path)
    for row in range(ROWS):
        # As PostgreSQL writes a real: the shortest digits that are no other one.
        numbers = [float(str(column[row])) for column in values]
        assert_same(features_of_row(spec, "array", sent([float(c[row]) for c in values])), want[row])
        for given in (dict(zip(("x3", "x2", "x1"), reversed(numbers), strict=True)), numbers):
            assert_same(features_of_row(spec, "object", json.dumps(given).encode()), want[row])


def test_booleans_are_one_and_zero(tmp_path):
    column = Column(name="yes", form=Form.FIXED, wire="u1", is_boolean=True)
    want, spec = table([column], [np.array([0, 1, 0, 1, 1], np.uint8)], tmp_path)
    assert_same(features_of_row(spec, "object", b'{"yes": true}'), want[1])
    assert_same(features_of_row(spec, "object", b'{"yes": false}'), want[0])


@pytest.fixture
def points(tmp_path):
    columns = [Column(name=name, form=Form.FIXED, wire=">f4") for name in ("a", "b")]
    return table(columns, [RANDOM.random(ROWS).astype(np.float32) for _ in columns], tmp_path)[1]


@pytest.fixture
def photos(tmp_path):
    files = [png(RANDOM.integers(0, 256, (4, 4), np.uint8)) for _ in range(ROWS)]
    column = Column(name="image", form=Form.BYTES)
    return table([column], [blobs(files)], tmp_path, size=(4, 4), channels=1)[1]


def test_a_null_anywhere_is_none(points, photos):
    for given in (b'{"a": 1, "b": null}', b"[1, null]"):
        assert features_of_row(points, "object", given) is None
    assert features_of_row(points, "array", sent([1.0, None])) is None
    assert features_of_row(points, "array", sent([None, None, None])) is None
    for given in (b'{"image": null}', b"[null]"):
        assert features_of_row(photos, "object", given) is None


def test_an_array_that_has_lost_its_nulls_has_none(points):
    # PostgreSQL keeps the bitmap of what an array was cut from.
    assert_same(
        features_of_row(points, "array", sent([1.0, 2.0], has_null=1)),
        features_of_row(points, "array", sent([1.0, 2.0])),
    )


def test_names_that_no_column_has_are_cut_and_made_sendable(points):
    given = json.dumps({"\ud800" * 100: 1, "x" * 100: 2, "y": 3}).encode()
    with pytest.raises(UndefinedColumn) as refusal:
        features_of_row(points, "object", given)
    assert refusal.value.hint == f"It has: {'?' * 64}, {'x' * 64}, y."


@pytest.mark.parametrize("data", [b"\x89PNG", b"pixels", b""])
def test_what_is_no_image_is_told_without_options_which_predictions_have_none_of(photos, data):
    with pytest.raises(UndecodableImage, match=r'^column "image" is') as refusal:
        features_of_row(photos, "bytes", data)
    assert refusal.value.hint == "Give a whole PNG, JPEG, WebP, GIF or BMP file."


IS_ARRAY = "is given as an array, but the model learned from numbers or booleans there"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (b'{"a": 1}', UndefinedColumn, 'the row has no column "b", from which the model learned'),
        (b"{}", UndefinedColumn, 'the row has no column "a", from which the model learned'),
        (b'{"f1": 1, "f2": 2}', UndefinedColumn, 'the row has no column "a", from which the model learned'),
        (b"[]", InvalidRequest, "0 values are given, but the model learned from 2 columns"),
        (b"[null]", InvalidRequest, "1 value is given, but the model learned from 2 columns"),
        (b"[1, null, 3]", InvalidRequest, "3 values are given, but the model learned from 2 columns"),
        (b"[1, 2, 3]", InvalidRequest, "3 values are given, but the model learned from 2 columns"),
        (b'{"a": 1, "b": "2"}', InvalidRequest, '"2" is no number'),
        (b'{"a": 1, "b": {"c": 1}}', InvalidRequest, '{"c": 1} is no number'),
        (b'{"a": 1, "b": [2]}', InvalidRequest, f'column "b" {IS_ARRAY}'),
        (b'{"a": [1, 2], "b": []}', InvalidRequest, f'column "a" {IS_ARRAY}'),
        (b"[[1, 2], []]", InvalidRequest, f'column "a" {IS_ARRAY}'),
        (b"[1, 2, [3]]", InvalidRequest, "3 values are given, but the model learned from 2 columns"),
        (b'"x"', InvalidRequest, 'features given as "x" are no row'),
        (b"null", InvalidRequest, "features given as null are no row"),
    ],
)
def test_what_is_no_row_of_the_models_says_why(points, given, error, message):
    with pytest.raises(error) as caught:
        features_of_row(points, "object", given)
    assert caught.value.message == message
    assert caught.value.hint


@pytest.mark.parametrize("number", ["1e400", "1e39", '"NaN"', '"-Infinity"', "1" + "0" * 400])
def test_numbers_out_of_range_are_refused(points, number):
    with pytest.raises(BadData, match='the feature "b" holds NaN or a number out of range') as caught:
        features_of_row(points, "object", f'{{"a": 1, "b": {number}}}'.encode())
    assert ("takes NaN as it does NULL" in caught.value.hint) == ("NaN" in number)


@pytest.mark.parametrize(
    ("form", "given", "error", "message"),
    [
        ("bytes", b"", UndecodableImage, 'column "image" is empty, not an image'),
        (
            "object",
            b'{"image": "x"}',
            InvalidRequest,
            'column "image" is no image',
        ),
        ("object", b'{"image": "\\\\xzz"}', InvalidRequest, 'column "image" is no image'),
        ("object", b'["x"]', InvalidRequest, 'column "image" is no image'),
        (
            "object",
            b'["\\\\x00", 1]',
            InvalidRequest,
            "2 values are given, but the model learned from 1 column",
        ),
        (
            "array",
            sent([1.0]),
            InvalidRequest,
            "the model learned from the column image, images in files, and not from arrays",
        ),
    ],
)
def test_what_is_no_image_says_why(photos, form, given, error, message):
    with pytest.raises(error) as caught:
        features_of_row(photos, form, given)
    assert caught.value.message == message
    assert caught.value.hint


def test_an_array_of_another_length_says_how_long_it_should_be(tmp_path):
    column = Column(name="pixels", form=Form.ARRAY, wire=">f4")
    _, spec = table([column], [np.ones((ROWS, 16), np.float32)], tmp_path)
    for given in ([1.0], []):
        with pytest.raises(RaggedArray, match="elements, but the model was trained on 16"):
            features_of_row(spec, "array", sent(given))


@pytest.mark.parametrize(
    "given", ["[1,[2],3,4]", "[[1,2,3],[4]]", "[[1,2],[3,[4]]]", "[[[1],2],[3],4]", "[[],1,2,3,4]"]
)
def test_a_ragged_array_is_refused(tmp_path, given):
    column = Column(name="pixels", form=Form.ARRAY, wire=">f4")
    _, spec = table([column], [np.ones((ROWS, 4), np.float32)], tmp_path)
    for sent_as in (given, '{"pixels": ' + given + "}"):
        with pytest.raises(
            RaggedArray, match="the array's rows are not all of one length and depth"
        ) as caught:
            features_of_row(spec, "object", sent_as.encode())
        assert caught.value.hint


@pytest.mark.parametrize("shape", [(3, 2, 2), (6, 2)])
def test_an_image_of_other_dimensions_is_refused_and_a_flat_one_taken(tmp_path, shape):
    column = Column(name="pixels", form=Form.ARRAY, wire=">f4")
    values = np.arange(ROWS * 12, dtype=np.float32).reshape(ROWS, 2, 2, 3)
    want, spec = table([column], [values], tmp_path, size=(2, 2), channels=3)
    other = values[0].reshape(shape)
    lists = other.tolist()
    for form, given in (
        ("array", sent(other)),
        ("object", json.dumps(lists).encode()),
        ("object", json.dumps({"pixels": lists}).encode()),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            features_of_row(spec, form, given)
        assert refusal.value.message == (
            f"the array has the dimensions {list(shape)}, but the model was trained on images of [2, 2, 3]"
        )
        assert refusal.value.hint
    for alike in (values[0], values[0].reshape(-1), values[0].reshape(2, 6)):
        assert_same(features_of_row(spec, "array", sent(alike)), want[0])
        assert_same(features_of_row(spec, "object", json.dumps(alike.tolist()).encode()), want[0])


@pytest.mark.parametrize("digits", [401, 5000, 131072])
def test_whole_numbers_of_any_length_are_refused_as_out_of_range(points, digits):
    with pytest.raises(BadData):
        features_of_row(points, "object", b'{"a": 1, "b": ' + b"9" * digits + b"}")


def test_lists_within_lists_of_any_depth_are_read_or_refused(points):
    assert features_of_row(points, "object", b"[" * 500 + b"1, 2" + b"]" * 500) is not None
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        features_of_row(points, "object", b"[" * 100_000 + b"1, 2" + b"]" * 100_000)


def test_a_number_too_far_from_those_of_the_training_is_refused(tmp_path):
    columns = [Column(name="x", form=Form.FIXED, wire=">f8")]
    _, spec = table(columns, [np.arange(ROWS, dtype=np.float64)], tmp_path)
    for far in (1e60, -1e300):
        with pytest.raises(BadData, match='the feature "x" holds NaN or a number out of range'):
            features_of_row(spec, "array", sent([far]))
