"""Graphs without plans are deleted at any time, also while a job is about to be planned for one."""

import psycopg
import pytest

from tensile_db.catalog.engine import make_engine
from tensile_db.catalog.graphs import Described
from tests.graphs.hand_made import chain
from tests.jobs.picture_jobs import PACKABLE

#: As docs/sql/administration.md has it.
CLEAR = """
    DELETE FROM tensile.graphs g WHERE NOT EXISTS (SELECT FROM tensile.plans WHERE graph_digest = g.digest)
        AND NOT EXISTS (SELECT FROM tensile.plans WHERE captured_digest = g.digest)
"""
#: Its graph has been written by then, and its plan has not.
CLEAR_WHILE_PLANNED = f"""
    CREATE FUNCTION clear_graphs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        {CLEAR};
        INSERT INTO public.cleared VALUES (new.id);
        RETURN NULL;
    END $$;
    CREATE TABLE cleared (job bigint);
    CREATE TRIGGER clear_graphs AFTER UPDATE OF phase ON tensile.jobs
        FOR EACH ROW WHEN (new.phase = 'planning') EXECUTE FUNCTION clear_graphs();
"""


def digests_of(database, job):
    """Return the digests of the graphs of a job's first plan whose rows are whole."""
    return database.execute(
        """
        SELECT g.digest
        FROM tensile.plans p JOIN tensile.graphs g ON g.digest IN (p.graph_digest, p.captured_digest)
        WHERE p.job_id = %s AND p.version = 1
            AND g.op_count = (SELECT count(*) FROM tensile.graph_ops o WHERE o.digest = g.digest)
            AND g.tensor_count = (SELECT count(*) FROM tensile.graph_tensors t WHERE t.digest = g.digest)
        """,
        job,
    )


@pytest.mark.thorough
def test_a_job_whose_graph_is_deleted_before_its_plan_is_recorded_goes_on(database, start_worker):
    start_worker()
    database.execute(CLEAR_WHILE_PLANNED)
    ample = database.wait(database.submit("pictures", **PACKABLE))
    assert ample["state"] == "succeeded", ample["error_message"]
    assert len(digests_of(database, ample["id"])) == 1
    # Its plan is of another graph than the captured one.
    limit_nbytes = int(0.9 * ample["vanilla_peak_nbytes"])
    limited = database.wait(database.submit("pictures", **PACKABLE, memory_limit_nbytes=limit_nbytes))
    assert limited["state"] == "succeeded", limited["error_message"]
    assert len(digests_of(database, limited["id"])) == 2
    cleared = {row["job"] for row in database.execute("SELECT job FROM cleared")}
    assert cleared == {ample["id"], limited["id"]}


@pytest.fixture
def engine(database):
    engine = make_engine(database.worker, application_name="test", pool_size=1)
    yield engine
    engine.dispose()


def test_a_graph_is_kept_until_the_transaction_that_needs_it_has_ended(database, engine):
    graph = chain()
    described = Described(graph=graph, architecture="", batch_size=1, image_size=None, optimizer=None)
    for _ in range(2):
        # Written, or written again.
        with engine.begin() as conn:
            described.ensure(conn)
        with engine.begin() as conn:
            described.ensure(conn)
            with psycopg.connect(database.admin, options="-c lock_timeout=100ms") as other:  # noqa: SIM117
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    other.execute(CLEAR)
        counts = "SELECT count(*) AS parts FROM tensile.graph_ops WHERE digest = %s"
        assert database.execute(counts, graph.digest) == [{"parts": len(graph.ops)}]
        database.execute(CLEAR)
        assert database.execute(counts, graph.digest) == [{"parts": 0}]
