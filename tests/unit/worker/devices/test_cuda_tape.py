"""What the tape calls of PyTorch's, on stand-ins that keep its books: failed captures leave nothing behind.

The real ones need a GPU (tests/gpu/test_cuda_replay.py).  Source: pytorch aten/src/ATen/cuda/CUDAGraph.cpp
and c10/cuda/CUDACachingAllocator.cpp, versions 2.11, 2.12 and 2.15.
"""

import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import _C

from tensile_db.worker.devices.cuda.tape import CudaTape
from tensile_db.worker.devices.recording import NotRecorded

VERSIONS = ("2.11", "2.12", "2.15")


class Books:
    """Of a pool, and the thread's last error, which a kernel's launch fetches."""

    def __init__(self, others):
        self.pool_uses = 0
        self.recording = False
        self.last_error = None
        #: A destructor's assertion failed, which ends the process.
        self.has_ended_process = False
        self._all = others
        others.append(self)

    def begin_allocate(self):
        assert not self.recording, "already recording to mempool_id"
        self.recording = True
        self.pool_uses += 1

    def end_allocate(self, *_of_pool):
        if not self.recording:
            raise RuntimeError("not currently recording to mempool_id")
        self.recording = False

    def release(self, *_pool):
        self.pool_uses -= 1
        assert self.pool_uses >= 0

    def destroy(self):
        self.has_ended_process = any(books.recording for books in self._all)
        self.release()


class Pool:
    """A MemPool."""

    id = (0, 1)

    def __init__(self, books):
        self.books = books
        books.pool_uses += 1

    def use_count(self):
        return self.books.pool_uses

    def snapshot(self):
        return []

    def __del__(self):
        self.books.destroy()


class Graph:
    """A CUDAGraph whose capture fails at one of its calls, or is invalid by what was called within."""

    def __init__(self, books, version, fails_at):
        self._books, self._version, self._fails_at = books, version, fails_at
        self.is_capturing = False
        self._holds_pool = False
        self._has_ended = False

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self._books.begin_allocate()
        self._holds_pool = True
        if self._fails_at == "begin":
            raise torch.AcceleratorError("no capture was begun")
        self.is_capturing = True

    def capture_end(self):
        was_capturing, self.is_capturing = self.is_capturing, False
        if not was_capturing:
            self._books.last_error = "operation not permitted on a stream that does not capture"
            raise RuntimeError("captureEnd called with no active capture")
        is_valid = self._fails_at not in ("end", "within")
        if is_valid or self._version != "2.11":
            self._books.end_allocate()
        if not is_valid:
            raise torch.AcceleratorError("capture was invalidated")
        self._has_ended = True
        if self._fails_at == "instantiate":
            raise torch.OutOfMemoryError("no memory for the graph")

    def reset(self):
        assert not self.is_capturing, "a stream goes on capturing"
        if self._version == "2.15" and self._holds_pool:
            if self._books.recording:
                self._books.end_allocate()
            self._books.release()
        elif self._has_ended:
            self._books.release()
        self._holds_pool = self._has_ended = False

    def replay(self):
        pass


class Generator:
    """A torch.Generator, which points to a state that others may point to, too."""

    def __init__(self, state=None):
        self.state = state or object()

    def graphsafe_get_state(self):
        return Generator(self.state)

    def graphsafe_set_state(self, other):
        self.state = other.state


@pytest.fixture
def default_generator():
    return Generator()


@pytest.fixture
def open_tape(monkeypatch, default_generator):
    """Open a tape with stand-ins; its graphs fail as they are told in turn, then no more."""

    others = []

    def make(version, *failures):
        books, left = Books(others), list(failures)

        @contextmanager
        def use_mem_pool(pool, device):
            pool.books.begin_allocate()
            try:
                yield
            finally:
                pool.books.end_allocate()
                pool.books.release()

        def new_graph():
            return Graph(books, version, left.pop(0) if left else None)

        monkeypatch.setattr(torch, "Generator", lambda device: Generator())
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "MemPool", lambda: Pool(books))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", new_graph)
        monkeypatch.setattr(torch.cuda, "use_mem_pool", use_mem_pool)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(_C, "_cuda_endAllocateToPool", books.end_allocate)
        monkeypatch.setattr(_C, "_cuda_releasePool", books.release)
        return books, CudaTape(torch.device("cuda", 0), default_generator)

    return make


@contextmanager
def raising(error):
    yield
    if error is not None:
        raise error


#: Where a graph fails, what is raised within the passage, and what comes of it.
FAILURES = [
    ("begin", None, "no capture was begun"),
    ("within", torch.AcceleratorError("the host reads a value"), "the host reads a value"),
    (None, NotRecorded("batches differ"), "batches differ"),
    ("end", None, "capture was invalidated"),
    ("instantiate", None, "no memory for the graph"),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("fails_at", "raised", "message"), FAILURES)
def test_a_capture_that_fails_leaves_neither_pool_nor_error_behind(
    open_tape, default_generator, version, fails_at, raised, message
):
    books, tape = open_tape(version, None, fails_at)
    state = default_generator.state
    with tape.passage("stream"):
        assert default_generator.state is tape.generator.state
    with pytest.raises(Exception, match=message), tape.passage("stream"), raising(raised):
        pass
    assert default_generator.state is state
    assert (books.recording, books.last_error) == (False, None)
    # Of the pool itself, and of the passage before.
    assert books.pool_uses == 2
    with tape.allocating():
        assert books.recording
    tape.close()
    assert books.pool_uses == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tape_gives_its_pool_back_when_all_its_passages_have_gone(open_tape, version):
    books, tape = open_tape(version)
    for _ in range(3):
        with tape.allocating():
            assert books.recording
        with tape.passage("stream") as passage:
            assert books.recording
        tape.replay(passage, "stream")
    assert books.pool_uses == 4
    tape.close()
    assert books.pool_uses == 0


def test_a_tape_is_closed_while_no_other_one_is_allocated_from(open_tape):
    books, tape = open_tape("2.11")
    _, other = open_tape("2.11")
    closing = threading.Thread(target=tape.close)
    with other.allocating():
        closing.start()
        # Without the lock it would be over by now.
        closing.join(0.2)
    closing.join()
    assert (books.pool_uses, books.has_ended_process) == (0, False)
    other.close()
