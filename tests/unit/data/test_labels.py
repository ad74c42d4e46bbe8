"""Classes of integer, boolean and text columns."""

import numpy as np
import pytest

from tensile_db.data import labels
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.labels import encode, find_classes, widen_classes
from tensile_db.errors import BadData

WHOLE = Column(name="label", form=Form.FIXED, wire=">i4", is_integer=True)
TRUTH = Column(name="label", form=Form.FIXED, wire="u1", is_boolean=True)
TEXT = Column(name="label", form=Form.TEXT)


def _texts(*texts: str) -> Variable:
    encoded = [text.encode() for text in texts]
    return Variable(
        data=np.frombuffer(b"".join(encoded), np.uint8),
        offsets=np.cumsum([0, *map(len, encoded)]).astype(np.int64),
    )


def test_integer_labels_need_not_be_consecutive():
    values = np.array([7, -3, 7, 40], np.int32)
    classes = find_classes(values, WHOLE, str)
    assert classes == (-3, 7, 40)
    assert encode(values, WHOLE, classes, str).tolist() == [1, 0, 1, 2]


def test_text_labels_keep_their_letters_and_sort_by_code_point():
    values = _texts("straße", "cat", "", "straße", "cats")
    classes = find_classes(values, TEXT, str)
    assert classes == ("", "cat", "cats", "straße")
    assert encode(values, TEXT, classes, str).tolist() == [3, 1, 0, 3, 2]


def test_truth_values_are_classes():
    values = np.array([1, 0, 1], np.uint8)
    classes = find_classes(values, TRUTH, str)
    assert classes == (False, True)
    assert encode(values, TRUTH, classes, str).tolist() == [1, 0, 1]


def test_a_single_class_is_refused():
    with pytest.raises(BadData, match='column "label" holds one class only, 5'):
        find_classes(np.array([5, 5], np.int32), WHOLE, str)


def test_a_class_that_the_model_does_not_know_is_named():
    with pytest.raises(BadData, match="holds 'dog', a class that the model was not trained on"):
        encode(_texts("cat", "dog"), TEXT, ("cat", "cow"), str)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_whole_numbers_of_a_column_of_fractions_are_classes_and_others_are_none(dtype):
    column = Column(name="label", form=Form.FIXED, wire=">f8")
    assert encode(np.array([1, -0.0, 1], dtype), column, (0, 1), str).tolist() == [1, 0, 1]
    assert encode(np.array([1, 0], dtype), column, (False, True), str).tolist() == [1, 0]
    for value, said in ((0.75, "0.75"), (-0.5, "-0.5"), (np.nan, "nan"), (-np.inf, "-inf")):
        with pytest.raises(
            BadData, match=f"holds {said}, a class that the model was not trained on"
        ) as refusal:
            encode(np.array([1, value], dtype), column, (0, 1), str)
        assert refusal.value.hint == "Leave such rows out by a view, or turn them into whole numbers there."


FLOAT = Column(name='la"bel', form=Form.FIXED, wire=">f8", cast="float8")


@pytest.mark.parametrize(
    ("values", "column", "classes", "said", "cast"),
    [
        (_texts("5", "7"), TEXT, (7, 8), "'5'", '"label"::text::bigint'),
        (_texts("t"), TEXT, (False, True), "'t'", '"label"::text::boolean'),
        (np.array([7], np.int32), WHOLE, ("7", "x"), "7", '"label"::text'),
        (np.array([7.0]), FLOAT, ("7", "x"), "7", '"la""bel"::bigint::text'),
        (np.array([1], np.uint8), TRUTH, ("False", "True"), "true", '"label"::text'),
    ],
)
def test_labels_of_another_type_than_all_classes_are_to_be_cast(values, column, classes, said, cast):
    wanted = cast.rpartition("::")[2]
    as_one = "false" if classes[0] is False else repr(classes[0])
    message = (
        f"holds {said}, but the classes that the model was trained on are of type {wanted}, as {as_one} is"
    )
    with pytest.raises(BadData, match=message) as refusal:
        encode(values, column, classes, str)
    assert refusal.value.hint == f"Write them so in a view, as by {cast}."


def test_zero_and_one_are_truth_values_and_truth_values_zero_and_one():
    assert encode(np.array([1, 0], np.int32), WHOLE, (False, True), str).tolist() == [1, 0]
    assert encode(np.array([1, 0], np.uint8), TRUTH, (0, 1), str).tolist() == [1, 0]
    with pytest.raises(BadData, match="holds 2, a class that the model was not trained on"):
        encode(np.array([2], np.int32), WHOLE, (False, True), str)


@pytest.mark.parametrize(("wire", "first_refused"), [(">f4", 2**24), (">f8", 2**53)])
@pytest.mark.parametrize("sign", [1, -1])
def test_floats_to_which_whole_numbers_may_have_been_rounded_are_no_classes(wire, first_refused, sign):
    column = Column(name="label", form=Form.FIXED, wire=wire)
    refused, taken = sign * first_refused, sign * (first_refused - 1)
    classes = (taken, refused)
    assert encode(np.array([taken], column.dtype), column, classes, str).tolist() == [0]
    with pytest.raises(BadData, match="to which whole numbers may have been rounded"):
        encode(np.array([refused], column.dtype), column, classes, str)


def test_endless_labels_are_refused():
    texts = _texts(*["a"] * 20_000, "b" * 1001, "c" * 2000)
    for refused in (lambda: find_classes(texts, TEXT, str), lambda: encode(texts, TEXT, ("a",), str)):
        with pytest.raises(
            BadData, match=r'^column "label" of row 20000 holds a text of 1,001 bytes, too long'
        ):
            refused()


def test_labels_of_many_blocks_have_one_numbering():
    texts = _texts(*[f"{row % 7}" for row in range(40_000)], "new")
    classes = find_classes(texts, TEXT, str)
    assert classes == ("0", "1", "2", "3", "4", "5", "6", "new")
    codes = encode(texts, TEXT, classes, str)
    assert codes[:40_000].tolist() == [row % 7 for row in range(40_000)]
    assert codes[40_000] == 7


def test_a_label_without_an_encoding_is_shown_as_bytes():
    texts = Variable(data=np.frombuffer(b"a\xff", np.uint8), offsets=np.array([0, 1, 2]))
    with pytest.raises(BadData, match=r"not UTF-8: b'\\xff'"):
        find_classes(texts, TEXT, str)


def test_classes_that_a_model_does_not_know_come_behind_its_own():
    assert widen_classes(_texts("owl", "cat", "ant"), TEXT, ("dog", "cat"), str) == (
        "dog",
        "cat",
        "ant",
        "owl",
    )
    # One that it knows is enough, and none of its own is lost.
    assert widen_classes(np.array([7, 7], np.int32), WHOLE, (9, 7), str) == (9, 7)
    floats = Column(name="label", form=Form.FIXED, wire=">f8")
    assert widen_classes(np.array([3.0, 9.0]), floats, (9, 7), str) == (9, 7, 3)
    # Truth values are the numbers 0 and 1, where the model learned these.
    assert widen_classes(np.array([1, 0], np.uint8), TRUTH, (0, 1), str) == (0, 1)


@pytest.mark.parametrize(
    ("values", "column", "known", "wanted"),
    [
        (np.array([5], np.int32), WHOLE, ("5",), "of type text, as '5' is"),
        (_texts("5"), TEXT, (5, 6), "of type bigint, as 5 is"),
        (np.array([2], np.int32), WHOLE, (False, True), "of type boolean, as false is"),
        (np.array([0], np.uint8), TRUTH, (1, 2), "of type bigint, as 1 is"),
    ],
)
def test_new_classes_of_another_type_are_refused(values, column, known, wanted):
    with pytest.raises(BadData, match=wanted):
        widen_classes(values, column, known, str)


def test_a_model_gets_no_more_classes_than_a_network_has_outputs(monkeypatch):
    monkeypatch.setattr(labels, "MAX_CLASSES", 3)
    assert len(widen_classes(np.array([3, 1], np.int32), WHOLE, (1, 2), str)) == 3
    with pytest.raises(BadData, match="holds 2 classes that the model does not know, which come to 4 with"):
        widen_classes(np.array([3, 4], np.int32), WHOLE, (1, 2), str)
