"""A network for the commands that plan: a benchmark's, an architecture, or one of one's own.

Source: ours; docs/planner.md, "A network of your own".
"""

from functools import partial

from tensile_db.commands.own_functions import called, load


def use_network(name: str) -> None:
    """Have a workload at hand by its name: one of ours, an architecture's, or `module:function`.

    Raises UnknownName for a name that is none's, InvalidRequest where the function makes none.
    """
    from tensile_db.bench.networks import own
    from tensile_db.bench.networks.workloads import WORKLOADS

    if name in WORKLOADS:
        return
    if ":" in name:
        function = load("network", name, hint=own.HINT)
        WORKLOADS[name] = own.own_workload(name, partial(called, "network", name, function))
    else:
        WORKLOADS[name] = own.architecture_workload(name)
