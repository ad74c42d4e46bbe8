"""Whether memory of a runtime's tapes comes where it is wanted (steered_memory.py): by trying.

Source: ours; pytorch aten/src/ATen/cuda/CublasHandlePool.cpp for cuBLAS's workspaces.
"""

import logging
from itertools import groupby

import torch

from tensile_db.scheduler.sharing.addresses import Lifetime, best_addresses, end_of
from tensile_db.scheduler.sharing.growing_range import in_pages
from tensile_db.worker.devices.runtime import Runtime, Tape
from tensile_db.worker.devices.steered_memory import SteeredMemory, Wanted

log = logging.getLogger(__name__)

_MIB = 2**20
#: (begin, end, MiB), by begin: of many sizes, some together; the smallest hole is seldom the one meant.
_TRIED = (
    *((0, 9, 6), (0, 3, 4), (2, 5, 3), (2, 13, 2), (4, 7, 8), (6, 11, 4), (6, 7, 5), (8, 9, 2), (8, 17, 3)),
    *((10, 11, 9), (12, 15, 7), (12, 17, 2), (14, 17, 5), (16, 17, 12)),
)
#: What libraries may keep.
_LIBRARIES_NBYTES = 60 * _MIB


def try_steering(runtime: Runtime) -> bool:
    """Return whether all of some allocations, made while a passage is taken down, come to their places.

    Takes some 100 MiB of the device meanwhile, and leaves to its thread what cuBLAS keeps for a stream, where
    PyTorch keeps that for the process: in version 2.13 and older ones.
    """
    try:
        tape = runtime.open_tape()
        try:
            return _comes_to_its_places(runtime, tape)
        finally:
            tape.close()
    except Exception as error:  # noqa: BLE001  # whatever it is, recordings do without
        log.warning("tensors of recordings are left where the allocator puts them: %s", error)
        return False


def _comes_to_its_places(runtime: Runtime, tape: Tape) -> bool:
    tried = [Lifetime(begin, end, nbytes * _MIB + 512) for begin, end, nbytes in _TRIED]
    wanted = best_addresses(tried)
    assert wanted is not None, "so few have places"
    nbytes, stream = end_of(tried, wanted), runtime.new_stream()
    held: dict[int, torch.UntypedStorage] = {}
    with runtime.on(stream), torch.inference_mode():
        with tape.allocating():
            steered = SteeredMemory(runtime.allocate, nbytes)
            runtime.take_library_workspaces()
        with tape.passage(stream):
            asked = zip(range(len(tried)), tried, wanted, strict=True)
            for begin, group in groupby(asked, lambda each: each[1].begin):
                for place in [place for place in held if tried[place].end <= begin]:
                    del held[place]
                    steered.let_go(place)
                together = list(group)
                with steered.opened([Wanted(address, each.nbytes, True) for _, each, address in together]):
                    for place, each, _ in together:
                        held[place] = runtime.allocate(each.nbytes)
                        steered.note(place, held[place].data_ptr(), each.nbytes)
                        _clear(held[place])
            # They have what they keep.
            runtime.take_library_workspaces()
            came = steered.astray == 0
            held.clear()
            steered.release()
    # Small tensors have pages of their own.
    most_nbytes = in_pages(nbytes + _LIBRARIES_NBYTES) + 4 * _MIB
    if not came or tape.nbytes > most_nbytes:
        log.warning(
            "tensors of recordings are left where the allocator puts them:"
            " %s came elsewhere, %s bytes were taken where %s should do",
            steered.astray,
            tape.nbytes,
            most_nbytes,
        )
        return False
    return True


def _clear(storage: torch.UntypedStorage) -> None:
    torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).zero_()
