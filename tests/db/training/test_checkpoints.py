"""Tensors to rows and back, bit for bit."""

from types import SimpleNamespace

import pytest
import torch
from psycopg.pq import TransactionStatus
from sqlalchemy import text

from tensile_db.catalog import checkpoints as stored
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.checkpoints import Checkpoint, Progress
from tensile_db.worker.jobs.records import Records


def write(engine, fence, state, iteration):
    with engine.begin() as conn:
        checkpoint = stored.begin(conn, fence, iteration=iteration, random_state=b"\x01\x02", detail={})
        stored.write(conn, checkpoint, checkpoints.to_stored(state))
    return checkpoint


def complete(engine, fence, checkpoint, iteration):
    with engine.begin() as conn:
        stored.complete(conn, fence, checkpoint, iteration=iteration)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def test_every_kind_of_tensor_comes_back_bit_for_bit(engine, fence):
    state = {
        "parameter/special": torch.tensor([-0.0, 0.0, float("nan"), float("-inf"), 1e-45]),
        "parameter/channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "buffer/count": torch.tensor(7),
        "buffer/empty": torch.empty(0, 3),
        "buffer/half": torch.randn(3).half(),
        "buffer/mask": torch.tensor([True, False]),
    }
    complete(engine, fence, write(engine, fence, state, 5), 5)
    with engine.begin() as conn:
        loaded = checkpoints.load(conn, fence.job)
    assert loaded is not None
    assert loaded.random_state.tolist() == [1, 2]
    assert set(loaded.state) == set(state)
    for name, tensor in state.items():
        assert loaded.state[name].dtype == tensor.dtype
        assert loaded.state[name].shape == tensor.shape
        assert bits(loaded.state[name]) == bits(tensor), name


def test_a_large_tensor_is_kept_in_parts_of_16_mib(database, engine, fence):
    state = {"parameter/large": torch.arange(9 * 2**20, dtype=torch.float32)}
    complete(engine, fence, write(engine, fence, state, 1), 1)
    parts = database.execute("SELECT part, length(data) AS n FROM tensile.checkpoint_tensors ORDER BY part")
    assert [(p["part"], p["n"]) for p in parts] == [(0, 2**24), (1, 2**24), (2, 2**22)]
    with engine.begin() as conn:
        loaded = checkpoints.load(conn, fence.job)
    assert torch.equal(loaded.state["parameter/large"], state["parameter/large"])


def test_a_job_goes_on_from_its_newest_complete_checkpoint(engine, fence):
    state = {"parameter/p": torch.zeros(1)}
    complete(engine, fence, write(engine, fence, state, 1), 1)
    second = write(engine, fence, {"parameter/p": torch.ones(1)}, 2)
    with engine.begin() as conn:
        assert stored.newest(conn, fence.job).iteration == 1
    complete(engine, fence, second, 2)
    write(engine, fence, state, 3)
    with engine.begin() as conn:
        assert stored.newest(conn, fence.job).iteration == 2


def test_a_saved_checkpoint_replaces_older_ones_and_never_a_newer_one(database, engine, fence):
    state = {"parameter/p": torch.zeros(1)}
    unfinished = write(engine, fence, state, 1)
    complete(engine, fence, write(engine, fence, state, 2), 2)
    job = SimpleNamespace(records=Records(engine, fence, give_up=lambda: True), must_break_off=lambda: False)
    random_state = torch.Generator().get_state()
    checkpoints.save(job, Checkpoint(progress=Progress(iteration=3), state=state, random_state=random_state))
    assert iterations(database) == [3]
    newer = write(engine, fence, state, 4)
    with engine.begin() as conn:
        stored.remove_older(conn, fence.job, newer)
        stored.remove_older(conn, fence.job, unfinished)
    assert iterations(database) == [4]


def iterations(database):
    return [
        row["iteration"] for row in database.execute("SELECT iteration FROM tensile.checkpoints ORDER BY id")
    ]


@pytest.fixture
def long_checkpoint(engine, fence):
    """One that is longer than what a connection holds on its way."""
    state = {f"parameter/{name}": torch.arange(5 * 2**20, dtype=torch.float32) for name in "abc"}
    complete(engine, fence, write(engine, fence, state, 1), 1)
    with engine.begin() as conn:
        return stored.newest(conn, fence.job).id


def test_a_tensor_that_is_not_understood_fails_the_reading_and_does_not_hang_it(
    database, engine, fence, long_checkpoint
):
    database.execute(
        "UPDATE tensile.checkpoint_tensors SET dtype = 'float3' WHERE name = 'parameter/a' RETURNING part"
    )
    conn = engine.connect()
    with pytest.raises(AttributeError, match="float3"):
        checkpoints.load(conn, fence.job)
    status = conn.connection.driver_connection.info.transaction_status
    # A copy that is not over would have a rollback wait for ever.
    conn.invalidate()
    conn.close()
    assert status is TransactionStatus.INERROR
    with pytest.raises(AttributeError, match="float3"):
        Records(engine, fence, lambda: False).must(lambda conn: checkpoints.load(conn, fence.job))
    with engine.begin() as conn:
        assert conn.execute(text("SELECT 1")).scalar_one() == 1


def test_tensors_left_unread_leave_the_connection_as_good_as_before(engine, long_checkpoint):
    with engine.connect() as conn:
        conn.begin()
        with stored.read(conn, long_checkpoint) as tensors:
            assert next(tensors).name == "parameter/a"
        conn.rollback()
        with stored.read(conn, long_checkpoint) as tensors:
            assert [tensor.name for tensor in tensors] == [f"parameter/{name}" for name in "abc"]
        assert conn.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.parametrize(("how", "sessions"), [("pg_cancel_backend", 1), ("pg_terminate_backend", 2)])
def test_reading_that_is_ended_by_an_administrator_begins_anew(
    database, engine, fence, long_checkpoint, how, sessions
):
    tries = []

    def read(conn):
        pid = conn.connection.driver_connection.info.backend_pid
        with stored.read(conn, long_checkpoint) as tensors:
            names = [next(tensors).name]
            tries.append(pid)
            if len(tries) == 1:
                assert database.execute(f"SELECT {how}(%s) AS done", pid) == [{"done": True}]
            return names + [tensor.name for tensor in tensors]

    names = Records(engine, fence, lambda: False).must(read)
    assert names == [f"parameter/{name}" for name in "abc"]
    assert len(tries) == 2
    assert len(set(tries)) == sessions
