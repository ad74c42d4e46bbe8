"""The devices that a worker can be given, by name.  No imports: a command checks them first."""

from tensile_db.errors import InvalidRequest, UnknownName

CPU = "cpu"
_CUDA = "cuda"


def require_device_name(name: str) -> None:
    """Raise UnknownName or InvalidRequest where no worker could have such a device."""
    if name != CPU:
        cuda_index(name)


def is_cuda(name: str) -> bool:
    """Tell whether the name is meant for a GPU."""
    return name.partition(":")[0] == _CUDA


def cuda_index(name: str) -> int:
    """Return the number in `cuda:N`, 0 for `cuda`.  Raises UnknownName, InvalidRequest."""
    if not is_cuda(name):
        raise UnknownName("device", name, (CPU, "cuda:0"))
    _, colon, number = name.partition(":")
    # Not isdigit(), which knows other scripts' digits.
    if colon and not (number.isascii() and number.isdecimal()):
        raise InvalidRequest(
            f'"{name}" names no GPU', hint="GPUs are cuda:0, cuda:1 and so on; the processor is cpu."
        )
    return int(number or 0)
