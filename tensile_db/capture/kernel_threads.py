"""For how many threads a step is captured: by that, too, ATen chooses kernels of convolutions of few rows."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Of what is simulated, wherever that is: for any number but one ATen chooses the same
#: (native/Convolution.cpp, `use_mkldnn`).
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
