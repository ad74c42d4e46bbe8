"""Who may touch PyTorch's default random generator, and when.

The default generator of a device belongs to the whole process.  Whatever seeds it or draws from it holds
`DEFAULT_GENERATOR_LOCK`: here the building of models, in the executor the ops that take no generator of
their own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DEFAULT_GENERATOR_LOCK = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` inside, and leave the CPU's default generator as it was.

    Takes DEFAULT_GENERATOR_LOCK.
    """
    with DEFAULT_GENERATOR_LOCK, torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        yield
