"""A network for the commands that plan: a benchmark's, an architecture, or `module:function`.

Source: ours; docs/planner/your_own.md, "A network of your own".
"""

import sys
from contextlib import redirect_stdout
from functools import partial

from tensile_db.commands.own_functions import call, load, require_no_module
from tensile_db.errors import UnknownName


def use_network(name: str) -> None:
    """Have a workload at hand by its name: one of ours, an architecture's, or `module:function`.

    Raises UnknownName for a name that is none's, InvalidRequest where the function makes none.
    """
    from tensile_db.bench.networks import own
    from tensile_db.bench.networks.architecture_workloads import architecture_workload
    from tensile_db.bench.networks.workloads import add, is_known

    if is_known(name):
        return
    if ":" in name:
        function = load("network", name, hint=own.HINT)
        # What the network prints as it is tried, too.
        with redirect_stdout(sys.stderr):
            add(own.own_workload(name, partial(call, "network", name, function)))
    else:
        try:
            add(architecture_workload(name))
        except UnknownName:
            require_no_module("network", name, example="network")
            raise
