"""What takes too long is not simulated to its end."""

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.simulation import Simulation, TooSlow
from tests.examples import examples
from tests.plans.drafted_jobs import tight_jobs


@given(st.data())
@examples(150)
def test_only_a_plan_whose_first_iteration_takes_longer_is_given_up(data):
    job, device, budget_nbytes = data.draw(tight_jobs())
    plan = Drafter(job, device, budget_nbytes, 1).by_swaps(tuple(op.id for op in job.graph.ops)).plan

    def run(first_within_ns):
        simulation = Simulation(job.graph, job.latencies_ns, plan, device, after_waits=True)
        return simulation.run(first_within_ns=first_within_ns)

    whole = run(None)
    for within_ns in (whole.first_ns, data.draw(st.integers(sum(job.latencies_ns) // 2, 2 * whole.first_ns))):
        try:
            assert run(within_ns) == whole
            event("not given up")
        except TooSlow:
            assert whole.first_ns > within_ns
            event("given up")
