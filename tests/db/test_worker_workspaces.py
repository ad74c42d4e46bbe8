"""A real worker on a device that sees what kernels take beyond their tensors: measured once, kept, charged."""

import pytest

TRAINING = {"epochs": 3, "options": {"hidden_units": [16, 8]}}

#: Of matrix products, for each byte of the result; no other op has any.
FACTOR = 5


def hungry(call, results_nbytes):
    return FACTOR * results_nbytes if "mm" in str(call.function) else 0


def rows_of(database):
    return database.execute("SELECT * FROM tensile.op_workspaces ORDER BY digest")


def graph_ops(database, job):
    return database.execute(
        "SELECT o.target, o.workspace_nbytes, (SELECT sum(t.nbytes) FROM tensile.graph_tensors t"
        " WHERE t.digest = o.digest AND t.tensor_id = ANY (o.writes)) AS made_nbytes"
        " FROM tensile.graph_ops o WHERE o.digest = (SELECT graph_digest FROM tensile.plans"
        " WHERE job_id = %s ORDER BY version LIMIT 1) ORDER BY o.op_id",
        job,
    )


def test_workspaces_are_measured_before_the_first_plan_and_charged_in_it(database, late_workers):
    late_workers.start(workspace=hungry)
    row = database.wait(database.submit("points", **TRAINING))
    assert row["state"] == "succeeded", row
    ops = graph_ops(database, row["id"])
    products = [op for op in ops if "mm" in op["target"]]
    assert len(products) == 8
    assert all(op["workspace_nbytes"] == FACTOR * op["made_nbytes"] for op in products)
    assert all(op["workspace_nbytes"] == 0 for op in ops if "mm" not in op["target"])
    # The one plan was made with them, and what the device held in the end was never more.
    (reason,) = [each["reason"] for each in database.execute("SELECT reason FROM tensile.plans LIMIT 1")]
    assert reason == "cold_start"
    assert late_workers.runtime.held_nbytes == 0
