"""How long the threads of a kernel on the processor wait for each other before they leave their cores.

OpenMP's wait in a loop of milliseconds, for which the one that they wait for, and every other process, is
kept from its core: on a busy machine a tenth of a small network's forward passes took 30 times as long.  With
more threads than cores libgomp shortens the loop to this by itself.

Source: libgomp's manual, GOMP_SPINCOUNT.
"""

import os

#: For a process's environment, unless it is set there already.
USUAL = {"GOMP_SPINCOUNT": "1000"}


def wait_briefly() -> None:
    """Have this process's kernels and its children's do so; to be called before PyTorch is imported."""
    for name, value in USUAL.items():
        os.environ.setdefault(name, value)
