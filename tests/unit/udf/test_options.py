"""Values that options may have, beyond what databases' tests try."""

import pytest

from tensile_db.errors import InvalidRequest
from tensile_db.udf.options import check_option


@pytest.mark.parametrize(
    "asked",
    ["balance", {}, {"a": 0}, {"a": -1}, {"a": "2"}, {"a": True}, {"a": None}, {"a": 1e10}, [1, 2], 1],
)
def test_values_that_are_no_class_weights_are_refused(asked):
    with pytest.raises(InvalidRequest, match='option "class_weights" cannot be') as refusal:
        check_option("class_weights", asked)
    assert refusal.value.hint == (
        'It is "balanced", or an object that gives classes weights, each a number from 1e-09 to 1e+09.'
    )


@pytest.mark.parametrize("asked", ["balanced", {"a": 2, "b": 0.5}, {"": 1e-9}])
def test_class_weights_are_balanced_or_given(asked):
    check_option("class_weights", asked)
