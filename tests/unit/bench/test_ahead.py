"""What is said of the default policy: who is faster within the same memory, and how far away the bound is."""

import math

import pytest

from tensile_db.bench.reports.ahead import faster_than_auto, over_the_bound, whether_ahead

AUTO = [
    {"share": 0.8, "msr": 0.2, "eor": 1.0},
    {"share": 0.5, "msr": 0.5, "eor": 1.1},
    {"share": 0.1, "refused": "too little"},
]


def test_a_policy_is_compared_within_the_same_memory():
    other = [
        {"share": 0.8, "msr": 0.3, "eor": 1.0},
        {"share": 0.5, "msr": 0.5, "eor": 1.05},
        {"share": 0.3, "msr": 0.7, "eor": 1.0},
        {"share": 0.1, "refused": "too little"},
    ]
    assert faster_than_auto({"auto": AUTO, "other": other}) == [(0.5, "other", 1.05, 1.1)]


def test_a_policy_that_has_a_plan_where_auto_has_none_is_faster():
    other = [{"share": 0.1, "msr": 0.9, "eor": 3.0}]
    assert faster_than_auto({"auto": AUTO, "other": other}) == [(0.1, "other", 3.0, math.inf)]
    said = whether_ahead(["network"], [(["A"], {"auto": AUTO, "other": other})])
    assert said.splitlines()[-1] == "| A | 10% | other | 3.000 | refused |"


@pytest.mark.parametrize(("msr", "eor", "faster"), [(0.4, 1.09, True), (0.4, 1.2, False), (0.6, 1.0, False)])
def test_one_that_heeds_no_budget_is_compared_with_plans_that_save_as_much(msr, eor, faster):
    other = [{"share": None, "msr": msr, "eor": eor}]
    found = faster_than_auto({"auto": AUTO, "other": other})
    assert found == ([(None, "other", eor, 1.1)] if faster else [])


def test_what_differs_by_rounding_alone_is_equal():
    other = [{"share": 0.5, "msr": 0.5, "eor": 1.0997}]
    assert faster_than_auto({"auto": AUTO, "other": other}) == []


def test_the_table_says_who_is_faster_or_that_nobody_is():
    slower = {"auto": AUTO, "other": [{"share": 0.5, "msr": 0.5, "eor": 1.5}]}
    faster = {"auto": AUTO, "other": [{"share": 0.5, "msr": 0.5, "eor": 1.0}]}
    assert "no policy's plan is faster" in whether_ahead(["network"], [(["A"], slower)])
    said = whether_ahead(["network"], [(["A"], slower), (["B"], faster)])
    assert said.splitlines()[-1] == "| B | 50% | other | 1.000 | 1.100 |"
    assert "| A |" not in said


def test_nothing_is_said_where_there_is_nothing_to_compare():
    assert whether_ahead([], [((), {"tensile": AUTO})]) == ""
    assert whether_ahead([], [((), {"auto": AUTO, "vanilla": AUTO})]) == ""


def test_time_over_the_bound_is_that_of_the_same_budget():
    points = [
        {"share": 0.5, "budget_nbytes": 50, "time_ns": 110},
        {"share": 0.3, "budget_nbytes": 30, "time_ns": 200},
        {"share": 0.1, "budget_nbytes": 10, "refused": "too little"},
    ]
    bound = [{"budget_nbytes": 50, "time_ns": 100}, {"budget_nbytes": 10, "time_ns": 100}]
    assert over_the_bound(points, bound) == {0.5: pytest.approx(0.1)}
