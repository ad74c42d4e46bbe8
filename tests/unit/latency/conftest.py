import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Small matrices are slower with several threads, and sums come in one order only with one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
