"""Which devices a benchmark can speak of: simulated ones by name."""

from tensile_db.errors import InvalidRequest
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import DeviceSpec

#: Benchmarks that have one of their own for the cpu device, in the checkout's `bench/`.
_ON_CPU = ("search", "serving", "sharing")


def simulated(name: str, bench: str) -> DeviceSpec:
    """Return the machine called sim:NAME.

    Raises UnknownName, and InvalidRequest for a device on which this benchmark does not run.
    """
    if name == "cpu" or name.startswith("cuda"):
        raise InvalidRequest(
            f"bench {bench} does not run on {name}: it simulates plans, and runs none",
            hint="Name a machine to simulate, e.g. --device sim:a6000; python -m"
            f" bench.{bench if bench in _ON_CPU else 'networks'} runs jobs on the cpu device.",
        )
    return machine(name)
