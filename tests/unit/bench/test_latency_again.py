"""What a second measurement of ops says of the first, and its place in the report."""

import pytest

from bench.latency_again import errors_of_again
from bench.latency_report import markdown
from tensile_db.latency.features import OpFeatures
from tensile_db.latency.samples import LatencySample
from tensile_db.worker.latencies.measuring_process import Measured


def sample(kind, size, latency_ns, utilization=0.0):
    features = OpFeatures(
        kind=kind, names=("size.flops",), values=(float(size),), flops=2**size, moved_nbytes=2**size
    )
    return LatencySample(features=features, utilization=utilization, latency_ns=latency_ns)


def probes(factor, *, first=0):
    """Return fifty probes, each of two equal ops beside other loads; their latencies grow with `factor`."""
    return [
        Measured(
            probe=probe,
            samples=tuple(
                sample("conv", probe % 10, int(factor * 1000 * 2 ** (probe % 10)), load)
                for load in (0.0, 0.5)
            ),
        )
        for probe in range(first, first + 50)
    ]


def test_equal_measurements_have_no_errors_and_others_theirs():
    errors = errors_of_again(probes(1.0), probes(1.0))["conv"]
    assert (errors.r_squared, errors.median_relative_error, errors.sample_count) == (1.0, 0.0, 100)
    assert errors_of_again(probes(1.0), probes(1.5))["conv"].median_relative_error == pytest.approx(0.5)


def test_only_probes_that_both_have_and_ops_beside_equal_load_are_compared():
    assert errors_of_again(probes(1.0), probes(1.0, first=50)) == {}
    assert errors_of_again(probes(1.0), probes(1.0, first=30))["conv"].sample_count == 40
    beside = [
        Measured(probe=each.probe, samples=tuple(one for one in each.samples if one.utilization))
        for each in probes(2.0)
    ]
    assert errors_of_again(probes(1.0), beside)["conv"].sample_count == 50


def test_a_kind_of_which_too_little_was_measured_again_is_in_the_report():
    errors = {"r_squared": 0.5, "r_squared_log": 0.6, "median_relative_error": 0.1}
    average = dict.fromkeys(
        (
            *("models", "mean_r_squared", "median_r_squared", "mean_r_squared_log"),
            *("median_r_squared_log", "median_relative_error"),
        ),
        0,
    )
    document = {
        "hardware": "a machine",
        "command": "python",
        "at": "now",
        "samples": 1,
        "workload": "none",
        "load_average": {"before": (0.0,), "after": (0.0,)},
        "kinds": {"one": {"samples": 3} | errors, "other": {"samples": 30} | errors | {"again": errors}},
        "average": average,
        "budget": 0.6,
        "networks": [],
    }
    page = markdown(document)
    assert "| one | 3 | 0.500 | 0.600 | 0.100 |  |  |  |" in page
    assert "| other | 30 | 0.500 | 0.600 | 0.100 | 0.500 | 0.600 | 0.100 |" in page
