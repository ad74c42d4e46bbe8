"""Features, their statistics, and batches by iteration number."""

import io

import numpy as np
import pytest
from PIL import Image

from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.dataset import Features, PredictingSet, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import prepare
from tensile_db.data.layout import find_layout
from tensile_db.data.statistics import statistics
from tensile_db.errors import BadData, InvalidRequest, JobCancelled, RaggedArray, UndecodableImage

ARRAY = Column(name="pixels", form=Form.ARRAY, wire=">i2", is_integer=True)
BYTES = Column(name="image", form=Form.BYTES)
_OUT_OF_RANGE = 'the feature "x0" of row id={} holds NaN or a number out of range'


def _number(name: str) -> Column:
    return Column(name=name, form=Form.FIXED, wire=">f8")


def _row_name(row: int) -> str:
    return f"id={row + 100}"


def _vectors(tmp_path, values: list[list[float]], training_rows: int | None = None) -> Features:
    columns = [_number(f"x{place}") for place in range(len(values[0]))]
    read = [np.array(column) for column in zip(*values, strict=True)]
    layout = find_layout(columns, read, wants_images=False, raw_shape=None, row_name=_row_name)
    made = prepare(layout, read, size=None, path=tmp_path / "features.npy", row_name=_row_name)
    mean, scale, _ = statistics(made, np.arange(training_rows or len(made)))
    spec = FeatureSpec(
        kind="vector",
        columns=tuple(column.name for column in columns),
        source_shape=layout.shape,
        raw=True,
        size=(),
        channels=0,
        mean=mean,
        scale=scale,
    )
    return Features(values=made, spec=spec)


def _blob(*values: bytes) -> Variable:
    return Variable(
        data=np.frombuffer(b"".join(values), np.uint8),
        offsets=np.cumsum([0, *map(len, values)]).astype(np.int64),
    )


def test_numeric_columns_become_standardised_features_and_constants_become_zero(tmp_path):
    features = _vectors(tmp_path, [[1.0, 5.0], [3.0, 5.0]])
    assert features.normalised(np.array([0, 1])).tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_a_number_that_is_not_finite_names_its_row(tmp_path):
    with pytest.raises(BadData, match='the feature "x0" of row id=101 holds NaN'):
        _vectors(tmp_path, [[1.0], [float("nan")], [2.0]])


def test_a_number_too_far_from_those_of_the_training_names_its_row(tmp_path):
    spec = _vectors(tmp_path, [[0.001], [0.002]]).spec
    for far in (1e60, -1e300, 1.7e308):
        features = Features(values=np.array([[1.0], [far]]), spec=spec, row_name=_row_name)
        batches = PredictingSet(features, ["a", "b"], batch_size=2).batches()
        with pytest.raises(BadData, match=_OUT_OF_RANGE.format(101)):
            next(batches)


@pytest.mark.parametrize(
    ("elements", "raw_shape", "want"),
    [
        (784, None, (28, 28, 1)),
        (3072, None, (32, 32, 3)),
        (6, [1, 2, 3], (1, 2, 3)),
        (6, [2, 3], (2, 3, 1)),
        (60, [3, 4, 5], (4, 5, 3)),
    ],
)
def test_an_array_is_an_image_by_its_length_or_by_a_given_shape(elements, raw_shape, want):
    values = [np.zeros((2, elements), np.int16)]
    layout = find_layout([ARRAY], values, wants_images=True, raw_shape=raw_shape, row_name=_row_name)
    assert (layout.kind, layout.shape) == ("image", want)


def test_an_array_for_a_network_of_numbers_is_a_vector():
    values = [np.zeros((2, 784), np.int16)]
    layout = find_layout([ARRAY], values, wants_images=False, raw_shape=None, row_name=_row_name)
    assert (layout.kind, layout.shape) == ("vector", (784,))


def test_an_array_that_is_no_square_asks_for_its_shape():
    values = [np.zeros((2, 10), np.int16)]
    with pytest.raises(InvalidRequest, match="arrays of 10 elements") as refusal:
        find_layout([ARRAY], values, wants_images=True, raw_shape=None, row_name=_row_name)
    assert "raw_shape" in refusal.value.hint


def test_an_array_that_is_no_image_is_told_all_shapes_of_images():
    values = [np.zeros((1, 8, 8, 4), np.int16)]
    with pytest.raises(InvalidRequest, match=r"an array's shape \[8, 8, 4\] is no shape") as refusal:
        find_layout([ARRAY], values, wants_images=True, raw_shape=None, row_name=_row_name)
    assert refusal.value.hint == (
        "Give [height, width], [height, width, channels] or [channels, height, width], with 1 channel or 3."
    )


def test_a_given_shape_that_contradicts_the_arrays_dimensions_is_refused():
    values = [np.zeros((1, 8, 8, 3), np.int16)]
    with pytest.raises(InvalidRequest) as refusal:
        find_layout([ARRAY], values, wants_images=True, raw_shape=[3, 8, 8], row_name=_row_name)
    assert refusal.value.message == (
        'raw_shape [3, 8, 8] contradicts the dimensions [8, 8, 3] of the arrays of column "pixels"'
    )
    for shape in ((192,), (3, 8, 8), (3, 64), (24, 8)):
        alike = [np.zeros((1, *shape), np.int16)]
        found = find_layout([ARRAY], alike, wants_images=True, raw_shape=[3, 8, 8], row_name=_row_name)
        assert (found.shape, found.channels_first) == ((8, 8, 3), True)


def test_an_image_that_does_not_decode_names_its_column_and_row():
    with pytest.raises(UndecodableImage, match='column "image" of row id=100 is no image'):
        find_layout([BYTES], [_blob(b"what?")], wants_images=True, raw_shape=None, row_name=_row_name)


def test_raw_bytes_of_another_length_name_their_row(tmp_path):
    values = [_blob(bytes(4), bytes(3))]
    layout = find_layout([BYTES], values, wants_images=True, raw_shape=[2, 2], row_name=_row_name)
    with pytest.raises(RaggedArray, match='column "image" of row id=101 has 3 bytes'):
        prepare(layout, values, size=(2, 2), path=tmp_path / "features.npy", row_name=_row_name)


def test_arrays_with_their_channels_first_are_turned(tmp_path):
    planes = np.arange(12, dtype=np.int16).reshape(1, 3, 2, 2)
    layout = find_layout([ARRAY], [planes], wants_images=True, raw_shape=None, row_name=_row_name)
    assert (layout.shape, layout.channels_first) == ((2, 2, 3), True)
    made = prepare(layout, [planes], size=(2, 2), path=tmp_path / "features.npy", row_name=_row_name)
    assert made[np.array([0])].tolist() == planes.tolist()


def _png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


GREY, COLOURED = _png(np.zeros((4, 6), np.uint8)), _png(np.zeros((9, 9, 3), np.uint8))


def test_a_source_that_begins_with_a_grey_image_keeps_the_colours_of_the_others():
    values = [_blob(GREY, GREY, COLOURED)]
    layout = find_layout([BYTES], values, wants_images=True, raw_shape=None, row_name=_row_name)
    assert layout.shape == (4, 6, 3)


@pytest.mark.slow
@pytest.mark.parametrize("place", range(1000, 1020))
def test_a_single_image_with_colours_among_many_grey_ones_keeps_them(place):
    images = [GREY] * 1500
    images[place] = COLOURED
    layout = find_layout([BYTES], [_blob(*images)], wants_images=True, raw_shape=None, row_name=_row_name)
    assert layout.shape == (4, 6, 3)


def test_to_look_at_many_images_can_be_stopped():
    def stop():
        raise JobCancelled("enough")

    with pytest.raises(JobCancelled):
        find_layout([BYTES], [_blob(GREY)], wants_images=True, raw_shape=None, row_name=_row_name, check=stop)


def test_bytes_that_may_be_pixels_are_told_of_raw_shape_and_damaged_images_are_not():
    for data, is_told in ((b"pixels", True), (b"\x89PNG", False)):
        with pytest.raises(UndecodableImage, match=r'^column "image" of row id=100 is') as refusal:
            find_layout([BYTES], [_blob(data)], wants_images=True, raw_shape=None, row_name=_row_name)
        assert ("raw_shape" in refusal.value.hint) is is_told


def test_a_network_of_one_channel_gets_colours_as_grey(tmp_path):
    pixels = np.array([[[[255, 0, 0]]]], np.int16)
    layout = find_layout([ARRAY], [pixels], wants_images=True, raw_shape=None, row_name=_row_name)
    made = prepare(
        layout, [pixels], size=(1, 1), channels=1, path=tmp_path / "features.npy", row_name=_row_name
    )
    assert made.shape == (1, 1, 1, 1)
    assert made[np.array([0])].item() == pytest.approx(76.245)


def test_truth_values_are_resized_as_numbers(tmp_path):
    board = np.indices((1, 8, 8)).sum(axis=0).reshape(1, 64) % 2
    for values in (board.astype(np.bool_), board.astype(np.int16)):
        layout = find_layout([ARRAY], [values], wants_images=True, raw_shape=[8, 8], row_name=_row_name)
        made = prepare(layout, [values], size=(4, 4), path=tmp_path / "features.npy", row_name=_row_name)
        assert made.dtype == np.float32
        assert made[np.array([0])].mean() == pytest.approx(0.5)


def test_rows_that_do_not_fit_on_disk_are_made_anew_and_are_the_same(tmp_path):
    values = [np.arange(5 * 16, dtype=np.int16).reshape(5, 16)]
    layout = find_layout([ARRAY], values, wants_images=True, raw_shape=None, row_name=_row_name)
    path = tmp_path / "features.npy"
    written = prepare(layout, values, size=(8, 8), path=path, row_name=_row_name)
    path.unlink()
    made = prepare(layout, values, size=(8, 8), path=path, row_name=_row_name, max_nbytes=5 * 64 * 4 - 1)
    assert list(tmp_path.iterdir()) == []
    places = np.array([4, 0, 2])
    assert made[places].tolist() == written[places].tolist()
    assert statistics(made, places) == statistics(written, places)


def test_small_differences_of_large_numbers_are_kept(tmp_path):
    features = _vectors(tmp_path, [[1.7e9], [1.7e9 + 1], [1.7e9 + 2]])
    assert features.normalised(np.array([0, 1, 2]))[:, 0] == pytest.approx([-1.2247449, 0.0, 1.2247449])


def test_statistics_of_bytes_are_exact():
    pixels = np.zeros((2, 2, 1, 2), np.uint8)
    pixels[0, 1] = [[1, 3]]
    pixels[1, 1] = [[5, 7]]
    mean, scale, _ = statistics(pixels, np.array([0, 1]))
    assert mean == (0.0, 4.0)
    assert scale == (1.0, np.sqrt(5.0))


def test_grey_images_fill_the_networks_channels(tmp_path):
    values = [np.array([[0, 2, 4, 6]], np.int16)]
    layout = find_layout([ARRAY], values, wants_images=True, raw_shape=None, row_name=_row_name)
    made = prepare(layout, values, size=(2, 2), path=tmp_path / "features.npy", row_name=_row_name)
    mean, scale, _ = statistics(made, np.array([0]))
    assert mean == (3.0,)
    spec = FeatureSpec(
        kind="image",
        columns=("pixels",),
        source_shape=layout.shape,
        raw=True,
        size=(2, 2),
        channels=3,
        mean=mean,
        scale=(3.0,),
    )
    batch = Features(values=made, spec=spec).normalised(np.array([0]))
    assert batch.shape == (1, 3, 2, 2)
    assert Features(values=made, spec=spec).byte_channels is None
    assert batch[0, 2].tolist() == [[-1.0, -np.float32(1) / 3], [np.float32(1) / 3, 1.0]]
    assert scale[0] == pytest.approx(np.sqrt(5))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_bytes_stay_bytes_and_bring_what_normalises_them(channels):
    pixels = np.arange(4 * channels * 6, dtype=np.uint8).reshape(4, channels, 2, 3)
    spec = FeatureSpec(
        kind="image",
        columns=("image",),
        source_shape=(2, 3, channels),
        raw=True,
        size=(2, 3),
        channels=3,
        mean=tuple(range(1, channels + 1)),
        scale=tuple(0.3 + channel for channel in range(channels)),
    )
    features = Features(values=pixels, spec=spec)
    assert features.byte_channels == channels
    found, target, normalisation = features.batch(np.array([2, 0]), np.array([7, 8]))
    assert found.dtype == np.uint8
    assert found.tolist() == pixels[[2, 0]].tolist()
    assert target.tolist() == [7, 8]
    assert normalisation.shape == (2, channels, 1, 1)
    made = (found.astype(np.float32) - normalisation[0]) / normalisation[1]
    want = features.normalised(np.array([2, 0]))
    assert np.array_equal(np.broadcast_to(made, want.shape), want)
    padded, _ = features.padded(np.array([1]), 2)
    assert padded.tolist() == pixels[[1, 1]].tolist()


def test_a_spec_survives_its_json():
    spec = FeatureSpec(
        kind="image",
        columns=("image",),
        source_shape=(28, 28, 1),
        raw=False,
        size=(32, 32),
        channels=3,
        mean=(1.5,),
        scale=(2.0,),
    )
    assert FeatureSpec.from_json(spec.to_json()) == spec
    with pytest.raises(InvalidRequest, match="format 99"):
        FeatureSpec.from_json({"format": 99})


def _training_set(tmp_path, rows: int, batch_size: int) -> TrainingSet:
    features = _vectors(tmp_path, [[float(row)] for row in range(rows)])
    return TrainingSet(
        features,
        np.arange(rows),
        training_rows=np.arange(rows - 3),
        validation_rows=np.arange(rows - 3, rows),
        batch_size=batch_size,
        seed=4,
    )


def test_a_row_held_out_that_is_far_from_those_of_the_training_is_refused(tmp_path):
    far = TrainingSet(
        _vectors(tmp_path, [[0.0], [1e-100], [1.0]], training_rows=2),
        np.arange(3),
        training_rows=np.arange(2),
        validation_rows=np.array([2]),
        batch_size=2,
        seed=4,
        row_name=_row_name,
    )
    with pytest.raises(BadData, match=_OUT_OF_RANGE.format(102)):
        next(far.validation(2))


def _targets(batches, count: int) -> list[list[int]]:
    taken = [next(batches)[1].tolist() for _ in range(count)]
    batches.close()
    return taken


def test_an_iterations_batch_does_not_depend_on_where_training_began(tmp_path):
    data = _training_set(tmp_path, 23, 6)
    assert data.batches_per_epoch == 3
    whole = _targets(data.training(1), 8)
    assert _targets(data.training(5), 4) == whole[4:]
    assert whole[0] != whole[3]


def test_an_epoch_brings_no_row_twice(tmp_path):
    epoch = _targets(_training_set(tmp_path, 23, 6).training(1), 3)
    assert len({row for batch in epoch for row in batch}) == 18


def test_a_batch_is_no_larger_than_the_rows(tmp_path):
    data = _training_set(tmp_path, 5, 32)
    assert (data.batch_size, data.batches_per_epoch) == (2, 1)


def test_the_last_validation_batch_is_padded_and_its_targets_are_not(tmp_path):
    batches = list(_training_set(tmp_path, 10, 4).validation(2))
    assert [batch[0].shape for batch, _ in batches] == [(2, 1), (2, 1)]
    assert [target.tolist() for _, target in batches] == [[7, 8], [9]]


def test_predicting_goes_through_all_rows_in_order(tmp_path):
    features = _vectors(tmp_path, [[0.0], [1.0], [2.0]])
    batches = list(PredictingSet(features, ["a", "b", None], batch_size=2).batches())
    assert [(len(batch[0]), keys) for batch, keys, _ in batches] == [(2, ["a", "b"]), (2, [None])]
