"""An array that is not NULL may hold one: how to leave such rows out is told, and works."""

import re
from dataclasses import replace

import pytest

from tensile_db.data.snapshot import read
from tensile_db.errors import NullInData


@pytest.mark.parametrize("arrays", ["ARRAY[i, NULL, i]", "ARRAY[ARRAY[i, NULL], ARRAY[i, i]]"])
def test_rows_are_left_out_as_the_hint_says(source, connection, tmp_path, site, arrays):
    site.execute(
        "CREATE TABLE holed (id int PRIMARY KEY, pixels float8[], label int); GRANT SELECT ON holed TO alice;"
        f"INSERT INTO holed SELECT i, {arrays}, mod(i, 2) FROM generate_series(1, 4) i;"
        "UPDATE holed SET pixels = array_replace(pixels, NULL, 7::float8) WHERE id <> 3"
    )
    asked = replace(source("holed"), features=["pixels"], target="label")
    with pytest.raises(NullInData, match='"pixels" of row id=3 holds an array with a NULL') as refusal:
        read(connection, asked, tmp_path / "rows")
    condition = re.search(r"by a view with (WHERE .*), or replace", refusal.value.hint)
    site.execute(
        f"CREATE VIEW whole AS SELECT pixels, label FROM holed {condition[1]}; GRANT SELECT ON whole TO alice"
    )
    asked = replace(source("whole"), features=["pixels"], target="label")
    _, rows = read(connection, asked, tmp_path / "rows")
    assert rows.count == 3
