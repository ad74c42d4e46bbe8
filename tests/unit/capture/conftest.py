import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Kernels choose their layouts by the number of threads, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
