"""What no splits bring within a limit is refused at once, with what the job needs at least."""

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.choice import Splitter
from tensile_db.scheduler.splitting.fitting import fitting_splits
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

DEVICE = machine("sim:a6000")
NETWORKS = ["vgg with dropout", "densenet", "transformer", "gcn"]


def job_of(network):
    graph = capture_once(training_of(network, "adam", 16))[0].graph
    return JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, DEVICE))


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("keeps_bits", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9])
def test_no_splits_need_less_than_the_least(network, keeps_bits, share):
    job = job_of(network)
    splitter = Splitter(job, DEVICE, keeps_bits=keeps_bits)
    whole_nbytes = lower_bound_peak_nbytes(job.graph)
    _, needed_nbytes = splitter.splits_within(int(share * whole_nbytes))
    assert 0 < splitter.least_nbytes() <= needed_nbytes <= whole_nbytes


def test_what_needs_more_however_it_is_split_is_refused_without_a_search(monkeypatch):
    job = job_of("transformer")
    least_nbytes = Splitter(job, DEVICE).least_nbytes()
    with monkeypatch.context() as patched:
        patched.delattr(Splitter, "splits_within")
        with pytest.raises(DoesNotFit) as refused:
            fitting_splits(job, DEVICE, least_nbytes - 1)
    assert (refused.value.needed_nbytes, refused.value.budget_nbytes) == (least_nbytes, least_nbytes - 1)
    # Here that is also what splits suffice for.
    assert least_nbytes < lower_bound_peak_nbytes(job.graph)
    assert fitting_splits(job, DEVICE, least_nbytes)
