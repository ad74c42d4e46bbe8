"""A catalog of many jobs that have ended: what is asked again and again does not look at them all."""

import json

import pytest

ENDED = 5000


@pytest.fixture
def crowded(site):
    """A site with many ended jobs of alice, and an event, a notice and a plan of each."""
    site.execute(
        "INSERT INTO tensile.graphs (digest, architecture, batch_size, tensor_count, op_count)"
        " VALUES ('kept', 'mlp', 1, 1, 1), ('left', 'mlp', 1, 1, 1)"
    )
    site.execute(
        "INSERT INTO tensile.jobs (kind, state, phase, submitted_by, owner, source_oid, source_name,"
        " finished_at) SELECT 'train', 'succeeded', 'done', oid, rolname, 0, 'points', now()"
        " FROM pg_roles, generate_series(1, %s) WHERE rolname = 'alice'",
        ENDED,
    )
    site.execute(
        "INSERT INTO tensile.job_events (job_id, kind) SELECT id, happened FROM tensile.jobs,"
        " unnest('{succeeded,notice}'::text[]) happened"
    )
    site.execute(
        "INSERT INTO tensile.plans (job_id, version, policy, reason, graph_digest, captured_digest)"
        " SELECT id, 1, 'auto', 'cold_start', 'kept', 'kept' FROM tensile.jobs"
    )
    site.execute("ANALYZE")
    return site


def rows_seen(site, relation, statement, role):
    """Run a statement and return how many rows of a relation were looked at."""
    plan = site.value("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, role=role)
    return _rows_seen(json.loads(plan) if isinstance(plan, str) else plan, relation)


def _rows_seen(node, relation):
    if isinstance(node, list):
        return sum(_rows_seen(part, relation) for part in node)
    if not isinstance(node, dict):
        return 0
    own = 0
    if node.get("Relation Name") == relation:
        own = node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    return own + sum(_rows_seen(part, relation) for part in node.values())


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM tensile.progress",
        "SELECT * FROM tensile.queue",
        "SELECT * FROM tensile.job_events WHERE job_id = 1",
        "SELECT * FROM tensile.plan_events WHERE job_id = 1",
    ],
)
def test_users_look_at_few_of_the_jobs(crowded, statement):
    assert rows_seen(crowded, "jobs", statement, "alice") < 10


def test_workers_look_for_abandoned_jobs_among_those_under_way(crowded):
    body = crowded.value("SELECT prosrc FROM pg_proc WHERE proname = 'cancel_abandoned'")
    assert rows_seen(crowded, "jobs", body, None) < 10


def test_all_that_is_ones_own_is_still_seen_at_once(crowded):
    asked = "SELECT count(*) FROM tensile.job_events"
    assert crowded.value(asked, role="alice") == 2 * ENDED
    assert crowded.value(asked, role="bob") == 0


def test_a_graph_without_plans_is_removed_without_a_look_at_all_plans(crowded):
    with crowded.connect("postgres", autocommit=False) as connection:
        # What checks a foreign key has no plan to be shown.
        before = connection.execute("SELECT pg_stat_get_xact_tuples_returned('tensile.plans'::regclass) AS n")
        (seen,) = before.fetchone().values()
        connection.execute("DELETE FROM tensile.graphs WHERE digest = 'left'")
        after = connection.execute("SELECT pg_stat_get_xact_tuples_returned('tensile.plans'::regclass) AS n")
        assert after.fetchone()["n"] - seen < 10
