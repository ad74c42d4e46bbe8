import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Kernels choose their layouts by the number of threads, too."""
