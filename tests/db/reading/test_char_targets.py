"""PostgreSQL's type "char" as the target: labels of one letter, as its own catalogs have."""

import pytest
from psycopg.rows import dict_row

SUBMIT = """
SELECT tensile_submit('mlp', 'kinds', 'relkind', '{relnatts,size}', 'k', epochs => 30, learning_rate => 0.1,
                      options => '{"hidden_units": [8]}') AS job
"""


@pytest.fixture
def anna(database, start_worker):
    """A connection of hers, who has relations' kinds to learn, and a worker for it."""
    start_worker()
    database.execute(
        """
        CREATE TABLE kinds (key integer PRIMARY KEY, relnatts smallint, size real, relkind "char");
        INSERT INTO kinds SELECT i, 2 * mod(i, 2), mod(i, 2), (ARRAY['r', 'v'])[1 + mod(i, 2)]::"char"
            FROM generate_series(1, 60) i;
        ALTER TABLE kinds OWNER TO anna
        """
    )
    with database.connect(row_factory=dict_row) as connection:
        yield connection


def test_a_target_of_the_type_char_is_learned_measured_and_predicted(anna):
    job = anna.execute(SUBMIT).fetchone()["job"]
    assert anna.execute("SELECT state FROM tensile_wait(%s)", [job]).fetchone() == {"state": "succeeded"}
    (row,) = anna.execute("SELECT classes, task FROM tensile_models()").fetchall()
    assert row == {"classes": 2, "task": "classification"}
    right = 'SELECT count(*) AS rows FROM kinds WHERE relkind = prediction::"char"'
    by_table = right.replace(
        "kinds", "kinds k JOIN tensile_predict('k', 'kinds') p ON p.row_key = k.key::text"
    )
    assert anna.execute(by_table).fetchone() == {"rows": 60}
    by_row = right.replace("kinds", "(SELECT k.*, tensile_predict('k', k) AS prediction FROM kinds k) p")
    assert anna.execute(by_row).fetchone() == {"rows": 60}
    accuracy = "SELECT value FROM tensile_evaluate('k', 'kinds') WHERE metric = 'accuracy'"
    assert anna.execute(accuracy).fetchone() == {"value": 1}
