"""For how many kernel threads a step is captured.

On one, ATen computes 1x1 convolutions of fewer than 16 rows by another kernel than on several
(native/Convolution.cpp, `use_mkldnn`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: For simulated devices, on every machine: any number but one gives the same kernels.
SIMULATED_THREADS = 2


@contextmanager
def captured_for(threads: int) -> Iterator[None]:
    """Have this thread's kernels, and so what is captured within, run with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
