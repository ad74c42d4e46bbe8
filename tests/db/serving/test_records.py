"""Rows by place and by name, told apart by their types and their columns' names."""

import json

import pytest

from tests.jobs.inserted_rows import add_model
from tests.played.told_postman import Postman, says

NAMED = "CREATE TYPE named AS (f1 integer, f2 integer)"

#: The model's columns, a query, and what the worker is told of its row.
ROWS = (
    # ROW(...): by place.
    ("a,b", "SELECT tensile_predict('digits', ROW(1, 2))", [1, 2]),
    ("a,b", "SELECT tensile_predict('digits', ROW(1, 2, 3))", [1, 2, 3]),
    ("f1,f2", "SELECT tensile_predict('digits', ROW(1, 2, 3))", [1, 2, 3]),
    ("f1,f2", "SELECT tensile_predict('digits', ROW(1, 2))", [1, 2]),
    ("f2,a", "SELECT tensile_predict('digits', ROW(1, 2))", [1, 2]),
    ("f2,f1", "SELECT tensile_predict('digits', ROW(1, 2, 3))", [1, 2, 3]),
    ("a", "SELECT tensile_predict('digits', ROW())", []),
    ("a", f"SELECT tensile_predict('digits', ROW({', '.join(map(str, range(12)))}))", list(range(12))),
    # A type with a name, and a subquery's row: by name.
    ("f2,f1", "SELECT tensile_predict('digits', ROW(1, 2)::named)", {"f1": 1, "f2": 2}),
    ("a,b", "SELECT tensile_predict('digits', ROW(1, 2)::named)", {"f1": 1, "f2": 2}),
    ("f2", "SELECT tensile_predict('digits', ROW(1, 2)::named)", {"f2": 2}),
    ("b,a", "SELECT tensile_predict('digits', t) FROM (SELECT 1 AS a, 2 AS b) t", {"a": 1, "b": 2}),
    ("f1,f2", "SELECT tensile_predict('digits', t) FROM (SELECT 2 AS f2, 1 AS f1) t", {"f1": 1, "f2": 2}),
    ("a,b", "SELECT tensile_predict('digits', t) FROM (SELECT 2 AS f2, 1 AS f1) t", {"f1": 1, "f2": 2}),
    # JSON: as it says.
    ("f2,f1", "SELECT tensile_predict('digits', to_jsonb(ROW(1, 2)))", {"f1": 1, "f2": 2}),
)


def test_rows_go_by_place_or_by_name(site):
    site.execute(NAMED)
    with Postman(site, says("odd")) as postman:
        for version, (columns, query, want) in enumerate(ROWS, 1):
            add_model(site, version=version, columns=columns)
            for schema in ("", "tensile."):
                site.execute(query.replace("tensile_predict", f"{schema}tensile_predict"), role="alice")
                assert json.loads(bytes(postman.seen[-1]["features"])) == want, query
                assert postman.seen[-1]["form"] == "object"


def test_one_session_may_give_rows_of_many_types_in_turn(site):
    site.execute(NAMED)
    add_model(site, columns="f1,f2")
    given = ("ROW(1, 2)", "ROW(1, 2)::named", "ROW(1, 2)", "ROW(1.5, true)")
    with Postman(site, says("odd")) as postman, site.connect("alice") as connection:
        for row in given:
            connection.execute(f"SELECT tensile_predict('digits', {row})")
    sent = [json.loads(bytes(request["features"])) for request in postman.seen]
    assert sent == [[1, 2], {"f1": 1, "f2": 2}, [1, 2], [1.5, True]]


@pytest.mark.parametrize("function", ["tensile_predict", "tensile_probabilities"])
@pytest.mark.parametrize("row", ["ROW(1, 2)", "t"])
def test_a_row_that_is_another_by_name_than_by_place_is_refused(site, function, row):
    add_model(site, columns="f2,f1")
    with Postman(site, says("odd")) as postman:
        refusal = site.refusal(f"SELECT {function}('digits', {row}) FROM (SELECT 1 AS f1, 2 AS f2) t")
    sqlstate, message, hint = refusal
    assert sqlstate == "42702"
    assert message == (
        "the row may be ROW(...), in the order of the model's columns, or a subquery's, whose columns have"
        " their names: f1, f2"
    )
    assert hint == "Give jsonb_build_array(...) in the order f2, f1, or to_jsonb(row) to go by the names."
    assert postman.seen == []
