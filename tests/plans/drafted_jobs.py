"""Random jobs within budgets that they exceed, and what one draft makes of them."""

from dataclasses import replace

from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.ways import USUAL_WAY
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.request import JobRequest
from tests.graphs.random_graphs import devices, latencies_for, training_graphs


@st.composite
def tight_jobs(draw, times=1):
    """A job, a device, and a budget from the job's bound to below eager's peak; times: what its ops take."""
    graph = draw(training_graphs())
    latencies_ns = tuple(times * ns for ns in draw(latencies_for(graph)))
    device = draw(devices(costly_copies=True))
    least_nbytes, most_nbytes = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    budget_nbytes = draw(st.integers(least_nbytes, max(least_nbytes, most_nbytes - 1)))
    return JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns), device, budget_nbytes


@st.composite
def stalling_jobs(draw):
    """A tight job whose ops take long enough to be relieved; the device has a channel for each direction."""
    job, device, budget_nbytes = draw(tight_jobs(times=5_000))
    return job, replace(device, duplex=True), budget_nbytes


def drafted(job, device, budget_nbytes):
    """Return who drafts the job, and the plan of its draft in the order of the graph."""
    drafter = Drafter(job, device, budget_nbytes, 1)
    order = tuple(op.id for op in job.graph.ops)
    draft = drafter.draft(order, USUAL_WAY)
    return drafter, drafter.by_swaps(order) if draft is None else drafter.in_rounds(draft)
