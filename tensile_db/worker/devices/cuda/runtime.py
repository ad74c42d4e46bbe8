"""CUDA's streams, events, memory and copies, by PyTorch's names for them.

This package alone names CUDA's API.  Each method is one or two calls; what they are for, and in which order,
is said in asynchronous.py and tested there without a GPU.

Source: pytorch docs/source/notes/cuda.rst, torch/cuda/{streams,memory}.py.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from tensile_db.worker.devices.cuda.nvml import Nvml
from tensile_db.worker.devices.cuda.tape import CudaTape

#: Of a kernel that tells how fast the clock goes: about a millisecond.
_TRIED_CYCLES = 1 << 21
#: How often it is tried.
_TRIES = 5


class _OnStream:
    """For a thread that knows one GPU only what torch.cuda.stream does, but for leaving that GPU afterwards.

    torch.cuda.stream asks each time which GPU is the thread's, at the cost of a copy.
    """

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream(self._stream.device_index)
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)


class CudaRuntime:
    """A `Runtime` (devices/runtime.py) on one GPU of this process."""

    def __init__(self, index: int) -> None:
        """index: among the GPUs that the process sees."""
        self.torch_device = torch.device("cuda", index)
        self._nvml = Nvml(_uuid(index))
        self._cycles_per_ns = _cycles_per_ns(self.torch_device)

    @property
    def default_generator(self) -> torch.Generator:
        """The GPU's own, which kernels without a generator draw from."""
        generators: Sequence[torch.Generator] = torch.cuda.default_generators
        return generators[self.torch_device.index]

    def allow_tf32(self, allowed: bool) -> None:
        """Set it for matrix products and for convolutions."""
        allow_tf32(allowed)

    def new_stream(self) -> torch.cuda.Stream:
        """Return a stream of PyTorch's pool of 32, which a worker with its recordings does not go round."""
        return torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def on(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Make the stream, and its device, the calling thread's."""
        return _OnStream(stream)

    def record(self, stream: torch.cuda.Stream, *, timed: bool = False) -> torch.cuda.Event:
        """Return an event recorded on the stream now."""
        event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """Call cudaStreamWaitEvent."""
        stream.wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Call cudaEventSynchronize, which lets go of the interpreter's lock."""
        event.synchronize()

    def has_come(self, event: torch.cuda.Event) -> bool:
        """Call cudaEventQuery."""
        come: bool = event.query()  # type: ignore[no-untyped-call]
        return come

    def elapsed_ns(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """Call cudaEventElapsedTime, which counts in ms, to half a microsecond."""
        milliseconds: float = begin.elapsed_time(end)
        return round(milliseconds * 1_000_000)

    def hold_back(self, stream: torch.cuda.Stream, duration_ns: int) -> None:
        """Give the stream a kernel that counts clock cycles."""
        with torch.cuda.stream(stream):
            _sleep(round(duration_ns * self._cycles_per_ns))

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory of PyTorch's caching allocator, which belongs to the stream that is current.

        It is let go of by dropping it, and is that stream's to hand out again; `record_stream` is not needed,
        since kernels of that stream wait for the copies before it is let go of (device.py's rules).
        """
        return torch.UntypedStorage(nbytes, device=self.torch_device)  # type: ignore[no-untyped-call]

    def take_library_workspaces(self) -> None:
        """Have cuBLAS take its workspace, which PyTorch keeps by thread and stream, for a small product."""
        one = torch.ones(1, 1, device=self.torch_device)
        torch.mm(one, one)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return memory of cudaHostAlloc."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def copy(
        self, stream: torch.cuda.Stream, source: torch.UntypedStorage, target: torch.UntypedStorage
    ) -> None:
        """Call cudaMemcpyAsync: a copy engine's work, for both sides are plain bytes."""
        with _OnStream(stream):
            target.copy_(source, non_blocking=True)

    def upload(
        self, stream: torch.cuda.Stream, source: np.ndarray | torch.Tensor, target: torch.Tensor
    ) -> None:
        """Copy by way of pinned memory, which PyTorch keeps and hands out again when the copy has ended."""
        staged = torch.empty_strided(
            target.size(), target.stride(), dtype=target.dtype, device="cpu", pin_memory=True
        )
        if isinstance(source, np.ndarray):
            np.copyto(staged.numpy(), source, casting="no")
        else:
            staged.copy_(source)
        with _OnStream(stream):
            target.copy_(staged, non_blocking=True)

    def download(self, stream: torch.cuda.Stream, source: torch.Tensor) -> torch.Tensor:
        """Copy to pinned memory of the same strides: other ones would have the GPU lay it out anew first."""
        host = torch.empty_strided(
            source.size(), source.stride(), dtype=source.dtype, device="cpu", pin_memory=True
        )
        with _OnStream(stream):
            host.copy_(source, non_blocking=True)
        return host

    def open_tape(self) -> CudaTape:
        """Return a pool, and the graphs to come."""
        return CudaTape(self.torch_device, self.default_generator)

    def memory_nbytes(self) -> tuple[int, int]:
        """Call cudaMemGetInfo: what other processes hold is not free."""
        free_nbytes, total_nbytes = torch.cuda.mem_get_info(self.torch_device)
        return free_nbytes, total_nbytes

    def watch_memory(self) -> int:
        """Return what PyTorch's allocator has been asked for and holds, and begin its peak anew."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        return self._requested_nbytes("current")

    def peak_nbytes(self) -> int:
        """Return the peak of the same."""
        return self._requested_nbytes("peak")

    def _requested_nbytes(self, which: str) -> int:
        # As accounts count, and the same whatever blocks are free: those handed out are up to 1 MiB larger.
        stats = torch.cuda.memory_stats_as_nested_dict(self.torch_device)
        nbytes: int = stats["requested_bytes"]["all"][which]
        return nbytes

    def utilization(self) -> float:
        """Return NVML's figure; 0 where nvidia-ml-py is not installed."""
        return self._nvml.utilization()

    def others_nbytes(self) -> int | None:
        """Return NVML's figure; None where it has none."""
        return self._nvml.others_nbytes()

    def trim(self) -> None:
        """Return free segments to the driver."""
        torch.cuda.empty_cache()


def allow_tf32(allowed: bool) -> None:
    """Let tensor cores shorten float32's fraction to 10 bits, in the whole process; or not."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def _cycles_per_ns(device: torch.device) -> float:
    """Return the pace of the multiprocessors' clocks, which is not what the driver says of them."""
    took_ms: list[float] = []
    with torch.cuda.device(device):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(_TRIES):
            begin.record()
            _sleep(_TRIED_CYCLES)
            end.record()
            end.synchronize()
            took_ms.append(begin.elapsed_time(end))
    # The first one loads the kernel, and of a GPU that was idle the clocks get faster.
    return _TRIED_CYCLES / (min(took_ms) * 1_000_000)


def _sleep(cycles: int) -> None:
    # PyTorch's own tests use it; there is no public name for it.
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001


def _uuid(index: int) -> str:
    return f"GPU-{getattr(torch.cuda.get_device_properties(index), 'uuid', 'unknown')}"
