"""Measured latencies are of a captured graph's ops, and of no other graph's with the same numbers."""

import psycopg
import pytest

from tensile_db.catalog import latencies
from tests.jobs.picture_jobs import PACKABLE


@pytest.fixture
def two_graphs(database):
    """Two captured graphs of two ops each, by their digests."""
    for digest in ("one", "other"):
        database.execute(
            "INSERT INTO tensile.graphs (digest, architecture, batch_size, tensor_count, op_count)"
            " VALUES (%s, 'mlp', 8, 2, 2)",
            digest,
        )
    return "one", "other"


def take_up(database, fence, version, captured_digest):
    database.execute(
        "INSERT INTO tensile.plans (job_id, version, policy, reason, graph_digest, captured_digest)"
        " VALUES (%s, %s, 'auto', 'resume', %s, %s)",
        fence.job,
        version,
        captured_digest,
        captured_digest,
    )


def measure(engine, fence, version, latest_ns):
    with engine.begin() as conn:
        latencies.write(
            conn,
            fence,
            plan_version=version,
            iteration=1,
            latest_ns=latest_ns,
            average_ns=[ns or 0 for ns in latest_ns],
            predicted_ns=[7] * len(latest_ns),
        )


def known(engine, fence, digest):
    with engine.begin() as conn:
        return latencies.newest(conn, fence.job, digest)


def test_what_was_measured_in_a_graph_is_known_of_that_graph_alone(database, engine, fence, two_graphs):
    one, other = two_graphs
    take_up(database, fence, 1, one)
    measure(engine, fence, 1, [100, 200])
    take_up(database, fence, 2, one)
    measure(engine, fence, 2, [None, 300])
    assert known(engine, fence, one) == {0: 100, 1: 300}
    assert known(engine, fence, other) == {}


def test_once_another_graph_is_measured_nothing_is_left_of_the_first(database, engine, fence, two_graphs):
    one, other = two_graphs
    take_up(database, fence, 1, one)
    measure(engine, fence, 1, [100, 200])
    take_up(database, fence, 2, other)
    assert known(engine, fence, one) == {0: 100, 1: 200}
    measure(engine, fence, 2, [None, 300])
    assert (known(engine, fence, one), known(engine, fence, other)) == ({}, {1: 300})


def test_what_a_version_measured_that_did_not_name_its_graph_is_measured_anew(
    database, engine, fence, two_graphs
):
    take_up(database, fence, 1, None)
    measure(engine, fence, 1, [100, 200])
    assert [known(engine, fence, digest) for digest in two_graphs] == [{}, {}]


#: The measured ops of a job.
MEASURED = (
    "SELECT o.target FROM tensile.latency_logs l"
    " JOIN tensile.plans p ON p.job_id = l.job_id AND p.version = l.plan_version"
    " JOIN tensile.graph_ops o ON o.digest = p.captured_digest AND o.op_id = l.op_id WHERE l.job_id = %s"
)


@pytest.fixture
def packed_job(database, start_worker):
    """A job whose plans all pack tensors; nobody else has a plan."""
    start_worker()
    ample = database.wait(database.submit("pictures", **PACKABLE))
    limit_nbytes = int(0.9 * ample["vanilla_peak_nbytes"])
    job = database.submit("pictures", **PACKABLE, memory_limit_nbytes=limit_nbytes)
    assert database.wait(job)["state"] == "succeeded"
    database.execute("DELETE FROM tensile.plans WHERE job_id = %s", ample["id"])
    return job


@pytest.mark.thorough
def test_measured_ops_are_found_by_the_captured_graph_of_a_packed_plan(database, packed_job):
    plans = database.execute("SELECT graph_digest, captured_digest FROM tensile.plans")
    assert all(plan["graph_digest"] != plan["captured_digest"] for plan in plans)
    measured = [row["target"] for row in database.execute(MEASURED, packed_job)]
    assert "aten.convolution.default" in measured
    assert not any(target.startswith("tensile.pack") for target in measured)


def test_a_jobs_owner_sees_its_captured_graph_though_all_its_plans_are_packed(database, packed_job):
    measured = [row["target"] for row in database.execute(MEASURED, packed_job)]
    with psycopg.connect(psycopg.conninfo.make_conninfo(database.admin, user="anna")) as conn:
        seen = [target for (target,) in conn.execute(MEASURED, [packed_job])]
    assert sorted(seen) == sorted(measured)
