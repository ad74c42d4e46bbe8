"""The tables of `bench sharing`: what they say of jobs without lanes, and of the trace's completion times."""

import pytest

from tensile_db.bench.networks.workloads import PAPER_FIVE
from tensile_db.bench.queueing.report import markdown
from tensile_db.bench.queueing.side_by_side import GOALS
from tensile_db.bench.reports.sharing import mixed

CASES = [{"network": "vgg16", "jobs": jobs, "share": share} for jobs, share in GOALS]
#: One for each case.
FOUND = [
    {"peak": 0.45, "at_one_time": 0.4, "makespan": 1.25},
    {"peak": 0.2801, "at_one_time": 0.27, "makespan": 1.5},
    {"needed": 0.2693},
    {"refused": "no convolutions"},
]
ROW = {"makespan_s": 60.0, "queueing_s": 0.0, "completion_s": 60.0, "completion_95_s": 60.0}


@pytest.fixture(scope="module")
def lines():
    lanes = {"sharing": "auto", "lanes": 1, "peak": 0.2, "makespan": 1.0}
    document = {
        "workload": {"trace_jobs": 4},
        "together": [case | lanes for case in CASES],
        "without_lanes": [
            *(case | {"policy": "tensile"} | found for case, found in zip(CASES, FOUND, strict=True)),
            *(case | {"policy": "vanilla", "peak": 1.0, "makespan": 1.0} for case in CASES),
        ],
        "trace": [ROW | {"sharing": "fifo", "completions_s": [120.0, 60.0, 240.0, 180.0]}],
        "fair": [],
        "search": [],
    }
    return markdown(document).splitlines()


def test_each_policy_without_lanes_stands_below_auto_with_lanes(lines):
    begin = lines.index("| network | policy | 2 in 45% | 4 in 28% | 4 in 25% | 8 in 20% |")
    assert lines[begin + 2 : begin + 6] == [
        "| VGG-16 | auto, in lanes | 0.200, 1.000 | 0.200, 1.000 | 0.200, 1.000 | 0.200, 1.000 |",
        "| VGG-16 | tensile | 0.450, 1.250 | over: 0.280, 1.500 | needs 0.269 | no convolutions |",
        "| VGG-16 | vanilla: PyTorch's threads |" + " over: 1.000, 1.000 |" * 4,
        "",
    ]


def test_completion_times_are_in_minutes_by_how_many_jobs_are_done(lines):
    begin = lines.index("| sharing | 5 % | 25 % | 50 % | 75 % | 95 % | 100 % |")
    assert lines[begin + 2] == "| fifo | 1.000 | 1.000 | 2.000 | 3.000 | 4.000 | 4.000 |"


@pytest.mark.parametrize(("networks", "paper"), [(PAPER_FIVE, "0.157 | 1.159 | 0.135"), (["gcn"], " |  | ")])
def test_the_papers_figures_stand_beside_those_of_its_five_networks_alone(networks, paper):
    point = {"share": 0.5, "msr": 0.5, "eor": 1.1, "cbr": 0.45}
    row = {"policy": "tensile", "points": [point], "best": point}
    document = {
        "device": {"name": "sim:a6000"},
        "workload": {"networks": networks, "batch": 16},
        "seeds": [1],
        "rows": [row],
    }
    assert f"| tensile | 0.500 | 1.100 | 0.450 | {paper} |" in mixed(document).splitlines()
