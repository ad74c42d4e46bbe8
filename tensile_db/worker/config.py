"""How a worker is run."""

import os
from dataclasses import dataclass
from pathlib import Path

#: Jobs that a worker holds at once, those that wait for memory included; models served and searches aside.
MAX_JOBS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """What `tensile-db worker` is given."""

    #: Connection string of the worker's login, a member of tensile_worker.
    dsn: str
    device: str = "cpu"
    #: Device memory that its jobs may hold together; None: what is free at its start.
    memory_nbytes: int | None = None
    #: Of the host, for what is swapped out of a GPU; None: half of the host's.
    host_memory_nbytes: int | None = None
    #: Of a GPU: take settled iterations down as CUDA graphs and replay them.
    replay: bool = True
    #: Of the cpu device, in each direction; None: its default.
    link_bytes_per_s: int | None = None
    #: Of the cpu device, for each job's kernels; None: all cores.
    threads: int | None = None
    #: How jobs share the device: a name of SHARING_POLICIES.
    sharing: str = "auto"
    #: Where rows that were read are kept while their job runs; None: a folder below the system's own.
    cache_dir: Path | None = None
    #: A worker that was not heard of for this long has lost its jobs.
    lease_s: float = 30.0
    #: How often jobs are looked for without being notified of any.
    poll_s: float = 2.0
    #: Jobs held at once, those that wait for memory included.
    max_jobs: int = MAX_JOBS
    #: Rows of one model that are predicted together, at most, of those that sessions ask for one at a time.
    serving_batch: int = 8
    #: A model that nobody asked for so long is served no more.
    serving_idle_s: float = 300.0
    #: Measure what predictions rest on: at the start, in under a second, the cpu device's cores; later, once
    #: for its hardware and while there are no jobs, the latencies of ops.
    calibrate: bool = True
    #: How long to measure latencies.
    calibration_s: float = 120.0
    #: How long there must have been no job before latencies are measured.
    idle_s: float = 10.0

    @property
    def kernel_threads(self) -> int:
        """Threads of each job's kernels on the cpu device."""
        return self.threads or os.cpu_count() or 1
