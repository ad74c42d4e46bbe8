"""Workspaces of ops in the catalog."""

import threading

import pytest

from tensile_db.catalog import workspaces
from tensile_db.catalog.workspaces import WorkspaceRow
from tensile_db.errors import Forbidden


def rows(**nbytes):
    """Return rows of ops by digest."""
    return [
        WorkspaceRow(digest=digest, kind="aten.mm.default", signature={"of": digest}, workspace_nbytes=n)
        for digest, n in nbytes.items()
    ]


def test_figures_are_found_by_hardware_and_digest_and_the_larger_one_stays(engine, database):
    with engine.begin() as conn:
        workspaces.write(conn, "here", rows(a=5, b=0))
        workspaces.write(conn, "there", rows(a=7))
    with engine.begin() as conn:
        workspaces.write(conn, "here", rows(a=4, b=3, c=1))
        workspaces.write(conn, "here", [])
    with engine.begin() as conn:
        assert workspaces.read(conn, "here", {"a", "b", "c", "d"}) == {"a": 5, "b": 3, "c": 1}
        assert workspaces.read(conn, "there", {"a", "b"}) == {"a": 7}
        assert workspaces.read(conn, "elsewhere", {"a"}) == {}
        assert workspaces.read(conn, "here", set()) == {}
    (kept,) = database.execute("SELECT * FROM tensile.op_workspaces WHERE digest = 'c'")
    assert (kept["kind"], kept["signature"]) == ("aten.mm.default", {"of": "c"})
    assert kept["measured_at"] is not None


def test_two_workers_that_measure_the_same_ops_wait_for_each_other_and_both_get_on(engine, database):
    done = threading.Event()

    def write_too():
        with engine.begin() as conn:
            workspaces.write(conn, "here", rows(b=9, a=1))
        done.set()

    with engine.begin() as conn:
        workspaces.write(conn, "here", rows(a=2, b=2))
        other = threading.Thread(target=write_too)
        other.start()
        assert not done.wait(0.3)
    other.join(20)
    assert done.is_set()
    with engine.begin() as conn:
        assert workspaces.read(conn, "here", {"a", "b"}) == {"a": 2, "b": 9}


def test_what_was_not_committed_is_not_known(engine):
    with engine.connect() as conn:
        workspaces.write(conn, "here", rows(a=2))
        conn.rollback()
        assert workspaces.read(conn, "here", {"a"}) == {}


def test_a_role_learns_which_rights_it_lacks(engine, database):
    with engine.begin() as conn:
        workspaces.require(conn)
    database.execute("REVOKE INSERT, UPDATE ON tensile.op_workspaces FROM tensile_worker")
    with (
        engine.begin() as conn,
        pytest.raises(Forbidden, match="lacks INSERT, UPDATE on"),
    ):
        workspaces.require(conn)


def test_users_may_read_what_was_measured_and_change_nothing(site):
    site.execute(
        "INSERT INTO tensile.op_workspaces (hardware, digest, kind, signature, workspace_nbytes)"
        " VALUES ('h', 'd', 'k', '{}', 1)"
    )
    assert site.value("SELECT workspace_nbytes FROM tensile.op_workspaces", role="bob") == 1
    for statement in (
        "UPDATE tensile.op_workspaces SET workspace_nbytes = 0",
        "DELETE FROM tensile.op_workspaces",
    ):
        assert site.refusal(statement, role="bob")[0] == "42501"
