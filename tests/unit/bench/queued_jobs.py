"""Jobs of one small graph, whose iterations all take the same time."""

from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.graphs.hand_made import chain

GRAPH = chain(state_nbytes=8)


#: Each op takes 100 ns.
LATENCIES = (100,) * len(GRAPH.ops)


PERIOD = sum(LATENCIES)


PEAK = vanilla.peak_nbytes(GRAPH)


def planned(made, jobs, device, sharing):
    return plan_shared(jobs, device, sharing, made)
