"""A real worker on a device that sees what kernels take beyond tensors: measured once, kept, charged."""

from queue import SimpleQueue

import psycopg
import pytest

from tensile_db.errors import Forbidden, NotInstalled
from tensile_db.worker import service
from tensile_db.worker.workspaces import known
from tests.patience import PATIENCE_S

TRAINING = {"epochs": 3, "options": {"hidden_units": [16, 8]}}

#: Of matrix products, for each byte of the result; no other op has any.
FACTOR = 5


def hungry(call, results_nbytes):
    return FACTOR * results_nbytes if "mm" in str(call.function) else 0


def rows_of(database):
    return database.execute("SELECT * FROM tensile.op_workspaces ORDER BY digest")


def planned_ops(database, job):
    return database.execute(
        "SELECT o.target, o.workspace_nbytes, (SELECT sum(t.nbytes) FROM tensile.graph_tensors t"
        " WHERE t.digest = o.digest AND t.tensor_id = ANY (o.writes)) AS made_nbytes"
        " FROM tensile.graph_ops o WHERE o.digest = (SELECT graph_digest FROM tensile.plans"
        " WHERE job_id = %s AND version = 1) ORDER BY o.op_id",
        job,
    )


@pytest.fixture
def ops_measured(monkeypatch):
    """The targets of all ops that were measured."""
    targets = []
    measure = known.WorkspaceMeter.workspace_nbytes

    def noting(self, op):
        targets.append(self._step.graph.ops[op].target)
        return measure(self, op)

    monkeypatch.setattr(known.WorkspaceMeter, "workspace_nbytes", noting)
    return targets


def test_workspaces_are_measured_before_the_first_plan_charged_in_it_and_known_from_then_on(
    database, late_workers, ops_measured
):
    worker = late_workers.start(workspace=hungry)
    first = database.wait(database.submit("points", **TRAINING))
    assert first["state"] == "succeeded", first
    ops = planned_ops(database, first["id"])
    products = [op for op in ops if "mm" in op["target"]]
    assert len(products) == 8
    assert all(op["workspace_nbytes"] == FACTOR * op["made_nbytes"] for op in products)
    assert {op["workspace_nbytes"] for op in ops if "mm" not in op["target"]} == {0}
    # One figure for each signature: also of the network going forward, for its validations.
    kept = rows_of(database)
    assert len(kept) == len(ops_measured)
    assert len({row["digest"] for row in kept}) == len(kept)
    # Another learning rate is another number in the optimizer's ops, and no other kernel.
    ops_measured.clear()
    second = database.wait(database.submit("points", learning_rate=0.01, **TRAINING))
    worker.stop()
    # Another worker on a device of the same model.
    late_workers.start(workspace=hungry)
    third = database.wait(database.submit("points", **TRAINING))
    assert (second["state"], third["state"], ops_measured) == ("succeeded", "succeeded", [])
    assert rows_of(database) == kept
    assert planned_ops(database, third["id"]) == ops
    assert late_workers.runtime.held_nbytes == 0


@pytest.mark.thorough
def test_what_other_libraries_needed_is_measured_anew(database, late_workers, ops_measured, monkeypatch):
    names = iter(["GPU, torch 2.15.0, CUDA 13.2, cuDNN 91000", "GPU, torch 2.15.0, CUDA 13.2, cuDNN 92000"])
    monkeypatch.setattr(service, "hardware_name", lambda device, threads: next(names))
    counts = []
    for _ in range(2):
        worker = late_workers.start(workspace=hungry)
        assert database.wait(database.submit("points", **TRAINING))["state"] == "succeeded"
        worker.stop()
        counts.append(len(ops_measured))
        ops_measured.clear()
    assert counts[0] == counts[1] > 0
    assert len(rows_of(database)) == sum(counts)


def test_a_job_holds_no_more_than_its_budget_workspaces_included_and_has_its_bits(database, late_workers):
    request = {"options": {"hidden_units": [256, 256]}, "epochs": 2, "batch_size": 64}
    frugal = late_workers.start()
    plain = database.wait(database.submit("points", **request))
    frugal.stop()
    database.execute("DELETE FROM tensile.op_workspaces")
    late_workers.start(workspace=hungry)
    ample = database.wait(database.submit("points", **request))
    assert ample["guaranteed_peak_nbytes"] > plain["guaranteed_peak_nbytes"] + FACTOR * 256 * 256 * 2
    # What the whole process held, accounts or not: first what was measured, then the job.
    assert late_workers.runtime.peak_held_nbytes <= ample["guaranteed_peak_nbytes"]
    late_workers.runtime.peak_held_nbytes = 0
    limit = ample["guaranteed_peak_nbytes"] - 256 * 256 * 2
    tight = database.wait(database.submit("points", memory_limit_nbytes=limit, **request))
    assert tight["state"] == "succeeded", tight
    assert 0.9 * limit < late_workers.runtime.peak_held_nbytes <= limit
    # The allocator's view is the account's.
    assert tight["measured_peak_nbytes"] == late_workers.runtime.peak_held_nbytes
    for job in (ample, tight):
        assert database.weights(job["id"]) == database.weights(plain["id"])


def test_a_job_whose_workspaces_do_not_fit_is_refused_and_others_go_on(database, late_workers):
    request = {"options": {"hidden_units": [256, 256]}, "epochs": 2, "batch_size": 64}
    late_workers.start(workspace=hungry)
    other = database.submit("points", **TRAINING)
    row = database.wait(database.submit("points", memory_limit_nbytes=700_000, **request))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200"), row
    assert database.wait(other)["state"] == "succeeded"


def test_a_job_whose_kernels_come_to_need_more_than_was_measured_fails_alone(database, late_workers):
    request = {"options": {"hidden_units": [256, 256]}, "epochs": 2, "batch_size": 64}
    late_workers.start(workspace=hungry)
    known_need = database.wait(database.submit("points", **request))["guaranteed_peak_nbytes"]
    database.execute("UPDATE tensile.op_workspaces SET workspace_nbytes = 0")
    late_workers.runtime.capacity_nbytes = known_need - 2**18
    other = database.submit("points", **TRAINING | {"epochs": 20})
    row = database.wait(database.submit("points", **request))
    assert (row["state"], row["error_sqlstate"]) == ("failed", "53200"), row
    assert "driver has no memory left" in row["error_message"]
    assert database.wait(other)["state"] == "succeeded"


@pytest.mark.thorough
def test_measuring_beside_a_job_that_runs_finds_what_it_finds_alone_and_changes_nothing(
    database, late_workers
):
    wide = {"options": {"hidden_units": [64, 32], "checkpoint_seconds": 1e6}, "epochs": 12}
    alone = late_workers.start(workspace=hungry)
    want = database.wait(database.submit("points", **wide))
    assert database.wait(database.submit("points", **TRAINING))["state"] == "succeeded"
    figures = rows_of(database)
    alone.stop()
    database.execute("DELETE FROM tensile.op_workspaces")
    late_workers.start(workspace=hungry)
    running = database.submit("points", **wide)
    database.wait_until(running, lambda row: (row["iteration"] or 0) > 5)
    before = len(rows_of(database))
    assert database.wait(database.submit("points", **TRAINING))["state"] == "succeeded"
    assert database.wait(running)["state"] == "succeeded"
    beside = "measured_at < (SELECT finished_at FROM tensile.jobs WHERE id = %s)"
    assert len(database.execute(f"SELECT 1 FROM tensile.op_workspaces WHERE {beside}", running)) > before
    assert database.weights(running) == database.weights(want["id"])

    def told(rows):
        return [(row["digest"], row["workspace_nbytes"]) for row in rows]

    assert told(rows_of(database)) == told(figures)


def test_what_uses_a_model_knows_its_workspaces_too(database, late_workers):
    late_workers.start(workspace=hungry)
    trained = database.wait(database.submit("points", **TRAINING))
    for kind in ("predict", "evaluate"):
        used = database.submit("points", kind=kind, model_id=trained["model_id"], batch_size=16)
        assert database.wait(used)["state"] == "succeeded"
        assert {op["workspace_nbytes"] > 0 for op in planned_ops(database, used) if "mm" in op["target"]} == {
            True
        }
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.admin, user="anna")) as anna:
        anna.execute("SELECT tensile_predict('m', ARRAY[a, b]) FROM points").fetchall()
    (serving,) = database.execute("SELECT id FROM tensile.jobs WHERE kind = 'serve'")
    served = [op for op in planned_ops(database, serving["id"]) if "mm" in op["target"]]
    assert {op["workspace_nbytes"] == FACTOR * op["made_nbytes"] for op in served} == {True}


def test_an_explanation_measures_nothing_and_takes_what_is_known(database, late_workers, ops_measured):
    late_workers.start(workspace=hungry)

    def least():
        row = database.wait(database.submit("points", kind="explain", **TRAINING))
        found = {
            each["property"]: int(each["value"])
            for each in row["result"]["rows"][-30:]
            if each["unit"] == "bytes"
        }
        return found["lower_bound_peak"]

    before = least()
    assert ops_measured == []
    assert database.wait(database.submit("points", **TRAINING))["state"] == "succeeded"
    assert least() > before


def test_a_worker_that_cannot_keep_workspaces_does_not_start(database, late_workers, monkeypatch):
    errors = SimpleQueue()
    monkeypatch.setattr(service.threading, "excepthook", lambda failed: errors.put(failed.exc_value))
    database.execute("REVOKE INSERT ON tensile.op_workspaces FROM tensile_worker")
    late_workers.start()
    refused = errors.get(timeout=PATIENCE_S)
    database.execute("DROP TABLE tensile.op_workspaces")
    late_workers.start()
    old = errors.get(timeout=PATIENCE_S)
    assert isinstance(refused, Forbidden)
    assert "lacks INSERT on tensile.op_workspaces" in refused.message
    assert isinstance(old, NotInstalled)
    assert "tensile-db install" in old.hint
