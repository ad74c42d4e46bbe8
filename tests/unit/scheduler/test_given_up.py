"""What takes too long is not simulated to its end."""

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.simulation import Simulation, TooSlow
from tests.examples import examples
from tests.random_graphs import devices, latencies_for, training_graphs


@given(st.data())
@examples(150)
def test_only_a_plan_whose_first_iteration_takes_longer_is_given_up(data):
    graph = data.draw(training_graphs())
    latencies_ns = data.draw(latencies_for(graph))
    device = data.draw(devices(costly_copies=True))
    least_nbytes, most_nbytes = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    budget_nbytes = data.draw(st.integers(least_nbytes, max(least_nbytes, most_nbytes - 1)))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns)
    plan = Drafter(job, device, budget_nbytes, 1).by_swaps(tuple(op.id for op in graph.ops)).plan

    def run(first_within_ns):
        simulation = Simulation(graph, latencies_ns, plan, device, after_waits=True)
        return simulation.run(first_within_ns=first_within_ns)

    whole = run(None)
    for within_ns in (whole.first_ns, data.draw(st.integers(sum(latencies_ns) // 2, 2 * whole.first_ns))):
        try:
            assert run(within_ns) == whole
            event("not given up")
        except TooSlow:
            assert whole.first_ns > within_ns
            event("given up")
