"""Machines that one may not have, as a planner sees them: `sim:NAME`.

Rates are the data sheets' times a share that real kernels and copies reach: they decide how predicted
latencies and copies stand to each other, and nothing is measured.

Source: NVIDIA's data sheets of RTX A6000, GeForce RTX 2080 Ti, Tesla P100 PCIe 16GB, TITAN RTX, H200 SXM.
"""

from tensile_db.errors import UnknownName
from tensile_db.scheduler.plan import DeviceSpec

_GIB = 2**30
_GB = 10**9
_TFLOPS = 10**12

#: Large float32 convolutions and matrix products reach about this share of the peak.
_OF_ARITHMETIC = 0.6
#: Element-wise kernels reach about this share of the memory's peak.
_OF_MEMORY = 0.8
#: Copies from pinned memory reach about this share of the link's nominal rate.
_OF_LINK = 0.8
#: A kernel launch from PyTorch.
_LAUNCH_NS = 5_000

_PCIE_3 = 15_750_000_000
_PCIE_5 = 63_000_000_000


def _machine(name: str, *, memory_gib: int, tflops: float, memory_gb_per_s: int, link: int) -> DeviceSpec:
    return DeviceSpec(
        name=f"sim:{name}",
        memory_nbytes=memory_gib * _GIB,
        d2h_bytes_per_s=int(link * _OF_LINK),
        h2d_bytes_per_s=int(link * _OF_LINK),
        duplex=True,
        flops_per_s=int(tflops * _TFLOPS * _OF_ARITHMETIC),
        memory_bytes_per_s=int(memory_gb_per_s * _GB * _OF_MEMORY),
        op_overhead_ns=_LAUNCH_NS,
    )


#: By NAME of sim:NAME; float32 without tensor cores.
MACHINES = {
    # As sustained on such a machine, not from its data sheet: every comparison with TENSILE rests on it.
    "a6000": DeviceSpec(
        name="sim:a6000",
        memory_nbytes=48 * _GIB,
        d2h_bytes_per_s=24 * _GB,
        h2d_bytes_per_s=24 * _GB,
        duplex=True,
        flops_per_s=28 * _TFLOPS,
        memory_bytes_per_s=650 * _GB,
        op_overhead_ns=_LAUNCH_NS,
    ),
    "h200": _machine("h200", memory_gib=141, tflops=67.0, memory_gb_per_s=4800, link=_PCIE_5),
    "p100": _machine("p100", memory_gib=16, tflops=9.3, memory_gb_per_s=732, link=_PCIE_3),
    "rtx2080ti": _machine("rtx2080ti", memory_gib=11, tflops=13.45, memory_gb_per_s=616, link=_PCIE_3),
    "titanrtx": _machine("titanrtx", memory_gib=24, tflops=16.3, memory_gb_per_s=672, link=_PCIE_3),
}


def machine(name: str) -> DeviceSpec:
    """Return the machine called sim:NAME.  Raises UnknownName."""
    known = {spec.name: spec for spec in MACHINES.values()}
    if name not in known:
        raise UnknownName("device", name, (*known, "cpu", "cuda:0"))
    return known[name]
