"""CUDA graphs, by PyTorch's names for them.

A graph's tensors come from a pool of its own, which PyTorch keeps from everybody else while graph and pool
are there; all graphs of one tape share the pool, for they are replayed in the order in which they were taken
down.  A graph is taken down in the mode "thread_local": other jobs' threads allocate and launch meanwhile.

What a capture that fails leaves behind, PyTorch's versions undo in part: allocations that still go to the
pool, the pool held by a graph that is none, a generator that still counts for the graph.  The first two are
undone here; the generator is the tape's own and goes with it, so that the job's never sees a capture.

Before PyTorch 2.13 a pool that goes while any thread allocates from another one ends the process, by an
assertion in a destructor.  So pools go, and are allocated from, under one lock.

Source: pytorch torch/cuda/{graphs,memory}.py, c10/cuda/CUDACachingAllocator.cpp,
aten/src/ATen/cuda/CUDAGraph.cpp.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import _C

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.worker.devices.recording import NotRecorded

#: Of torch._C: not PyTorch's public names, which may go.
_CONSTRUCT = "_construct_storage_from_data_pointer"
_END, _RELEASE = "_cuda_endAllocateToPool", "_cuda_releasePool"
_NEEDED = (_CONSTRUCT, _END, _RELEASE)

#: Taken within DEFAULT_GENERATOR_LOCK, where both are.
_POOLS_LOCK = threading.Lock()

#: Of captures that failed, what must not be destroyed: small, and one for each plan that is refused.
_KEPT: list[object] = []


class CudaTape:
    """A `Tape` (devices/runtime.py): a memory pool and the graphs over it."""

    def __init__(self, device: torch.device, default_generator: torch.Generator) -> None:
        """default_generator: the GPU's own, for which the tape's stands in while it takes down.

        Raises NotRecorded where this PyTorch lacks what it takes.
        """
        missing = [name for name in _NEEDED if not hasattr(_C, name)]
        if missing:
            raise NotRecorded(f"PyTorch {torch.__version__} has no {', '.join(missing)}")
        self.generator = torch.Generator(device)
        self._device = device
        self._default_generator = default_generator
        self._graphs: list[torch.cuda.CUDAGraph] = []
        # Memory that is free and kept for speed cannot be given back once a capture has begun.  It
        # comes before the pool is made: where it fails, no pool is left to be destroyed outside of the lock.
        with _POOLS_LOCK, torch.cuda.device(device):
            torch.cuda.empty_cache()
            self._pool: Any = torch.cuda.MemPool()

    @property
    def nbytes(self) -> int:
        """Return the size of the pool's segments, free or not."""
        segments = self._pool.snapshot()
        return sum(int(segment["total_size"]) for segment in segments)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Have the calling thread's allocations come from the pool."""
        with _POOLS_LOCK, torch.cuda.use_mem_pool(self._pool, self._device):
            yield

    @contextmanager
    def passage(self, stream: torch.cuda.Stream) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the stream, and those that wait for its events, into a graph."""
        graph = torch.cuda.CUDAGraph()
        # The generator stands in for the GPU's own, which counts for any graph.
        with DEFAULT_GENERATOR_LOCK, _POOLS_LOCK, torch.cuda.stream(stream), self._standing_in():
            try:
                graph.capture_begin(pool=self._pool.id, capture_error_mode="thread_local")
                try:
                    yield graph
                except BaseException:
                    # Once and not again: ending what is no capture leaves CUDA an error that nobody
                    # fetches, until the thread's next kernel fails with it.
                    with suppress(Exception):
                        graph.capture_end()
                    raise
                graph.capture_end()
            except BaseException:
                self._discard(graph)
                raise
        self._graphs.append(graph)

    def replay(self, passage: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        """Call cudaGraphLaunch."""
        with torch.cuda.stream(stream):
            passage.replay()

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return a storage over the same address that frees nothing."""
        construct: Callable[..., torch.UntypedStorage] = getattr(_C, _CONSTRUCT)
        return construct(storage.data_ptr(), storage.device, storage.nbytes())

    def close(self) -> None:
        """Destroy the graphs and return the pool's segments to the driver, which waits for the GPU."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        with _POOLS_LOCK:
            if self._pool.use_count() > 1:
                # PyTorch counts on it, and ends the process where a pool goes too early.
                _KEPT.append(self._pool)
            self._pool = None
            torch.cuda.empty_cache()

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        # Capturing refuses get_state and set_state; these exchange what the generators point to.
        default = self._default_generator
        others = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generator.graphsafe_get_state())
        try:
            yield
        finally:
            default.graphsafe_set_state(others)

    def _discard(self, graph: torch.cuda.CUDAGraph) -> None:
        """Undo what is left of a capture that failed; what failed first is what counts."""
        index, pool = self._device.index, self._pool.id
        with suppress(Exception):
            graph.reset()
        # Not all that PyTorch's older versions leave is reset.
        with suppress(Exception):
            getattr(_C, _END)(index, pool)
        if self._pool.use_count() > 1 + len(self._graphs):
            getattr(_C, _RELEASE)(index, pool)
        # PyTorch's allocator of pinned memory may go on asking it whether an allocation is the capture's.
        _KEPT.append(graph)
