"""First contact: what the device is, how fast, and whether the runtime keeps its promises at all."""

import time
from typing import Any

import torch

from bench.gpu import codes
from bench.gpu.machine import Machine, spec_facts
from bench.gpu.results import Results
from tensile_db.worker.devices.device import Device
from tensile_db.worker.messages import JobId

MIB = 2**20


def run(machine: Machine, results: Results, *, quick: bool) -> None:
    """Open the device, copy, allocate, wait; each by itself."""
    begin_s = time.monotonic()
    device = results.attempt("open", 0, lambda: machine.open(deterministic=True))
    if device is None:
        return
    results.note(opening_s=round(time.monotonic() - begin_s, 2), spec=spec_facts(device))
    for name, check in (
        ("copies", _copies),
        ("order", _order),
        ("generators", _generators),
        ("allocator", _allocator),
        ("launches", _launches),
        ("swap events", _swap_events),
        ("codes", codes.check),
    ):
        found = results.attempt(name, 1, lambda check=check: check(machine, device))
        if found is not None:
            results.add({"check": name, **found})
    results.attempt("close", 0, device.close)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _copies(machine: Machine, device: Device) -> dict[str, Any]:
    """Copies of one tensor by size, to the host and back, with the bytes compared."""
    rows = []
    for nbytes in (4096, MIB, 16 * MIB, 256 * MIB if machine.is_gpu else 16 * MIB):
        with device.computing():
            source, target = device.allocate(nbytes), device.allocate(nbytes)
            _bytes(source).random_(0, 255)
            _bytes(target).zero_()
            buffer = device.host.acquire(nbytes)
            marks = [device.record()]
            device.copy_out(JobId(1), source, buffer, 0).wait()
            marks.append(device.record())
            device.copy_in(JobId(1), buffer, target, 0).wait()
            marks.append(device.record())
            same = torch.equal(_bytes(source), _bytes(target))
            out_ns, in_ns = (device.elapsed_ns(marks[i], marks[i + 1]) for i in range(2))
            del source, target
        device.host.release(buffer)
        rows.append({"nbytes": nbytes, "out_ns": out_ns, "in_ns": in_ns, "same": same})
    return {"copies": rows}


def _order(machine: Machine, device: Device) -> dict[str, Any]:
    """A copy out while kernels run on: it must see the value before them, and reused memory no copy's."""
    wrong, nbytes = 0, 64 * MIB if machine.is_gpu else MIB
    for number in range(20):
        with device.computing():
            storage, buffer = device.allocate(nbytes), device.host.acquire(nbytes)
            _bytes(storage).fill_(number)
            copy = device.copy_out(JobId(1), storage, buffer, 0)
            copy.wait()
            del storage
            again = device.allocate(nbytes)
            _bytes(again).fill_(255)
            device.finish()
            wrong += int((_bytes(buffer) != number).sum().item())
            del again
        device.host.release(buffer)
    return {"wrong_bytes": wrong}


def _generators(machine: Machine, device: Device) -> dict[str, Any]:
    """A job's generator in place of the default one must give what a seeded process gives."""
    where = machine.torch_device
    torch.manual_seed(7)
    want = torch.nn.functional.dropout(torch.ones(10_000, device=where), 0.5).cpu()
    own = torch.Generator(where).manual_seed(7)
    default = device.default_generator
    others = default.get_state()
    default.set_state(own.get_state())
    got, _ = torch.native_dropout(torch.ones(10_000, device=where), 0.5, True)
    own.set_state(default.get_state())
    default.set_state(others)
    return {"same": torch.equal(got.cpu(), want), "state_nbytes": others.numel()}


def _allocator(machine: Machine, device: Device) -> dict[str, Any]:
    """What the allocator makes of sizes that networks have: rounding, and what stays reserved."""
    rows = []
    for nbytes in (4, 512, 1000, 100_000, 3 * MIB + 1, 50 * MIB):
        machine.clean()
        before = machine.allocated_nbytes()
        with device.computing():
            storage = device.allocate(nbytes)
            rows.append({"nbytes": nbytes, "allocated": machine.allocated_nbytes() - before})
            del storage
    return {"sizes": rows}


def _launches(machine: Machine, device: Device) -> dict[str, Any]:
    """What the host takes to hand a kernel over, and an event."""
    with device.computing():
        x = torch.zeros(1, device=machine.torch_device)
        took = {}
        for name, work in (("kernel_ns", x.neg_), ("mark_ns", device.record)):
            begin_ns = time.perf_counter_ns()
            for _ in range(1000):
                work()
            took[name] = (time.perf_counter_ns() - begin_ns) // 1000
            device.finish()
    return took


def _swap_events(machine: Machine, device: Device) -> dict[str, Any]:
    """What the host takes to hand a small swap over, there and back."""
    with device.computing():
        storage, buffer = device.allocate(4096), device.host.acquire(4096)
        begin_ns = time.perf_counter_ns()
        for _ in range(300):
            device.copy_out(JobId(1), storage, buffer, 0).wait()
            device.copy_in(JobId(1), buffer, storage, 0).wait()
        handed_ns = (time.perf_counter_ns() - begin_ns) // 600
        device.finish()
        whole_ns = (time.perf_counter_ns() - begin_ns) // 600
        del storage
    device.host.release(buffer)
    return {"hand_over_ns": handed_ns, "copy_4096_bytes_ns": whole_ns}
