"""Results of several runs, put together."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensile_db.bench.reports.joining import joined
from tensile_db.bench.reports.provenance import told
from tensile_db.bench.reports.results import read, write
from tensile_db.bench.single import figures_of
from tensile_db.cli import app
from tensile_db.errors import InvalidRequest

RESULTS = Path(__file__).parents[3] / "bench/results"


def document(command, rows, **more):
    return {
        "bench": "scale",
        "command": command,
        "at": f"2026-01-0{len(command)}T00:00:00+00:00",
        "device": {"name": "sim:p100", "memory_nbytes": 16},
        "workload": {"networks": list(dict.fromkeys(row["network"] for row in rows)), "batch": 16},
        "rows": rows,
    } | more


def row(network, jobs, policy, eor):
    return {"network": network, "jobs": jobs, "policy": policy, "best": {"eor": eor}}


WHOLE = document(
    "a", [row("vgg16", 1, "auto", 1.0), row("vgg16", 1, "tensile", 2.0), row("vgg16", 2, "auto", 3.0)]
)
PART = document("ab", [row("vgg16", 2, "auto", 2.5), row("resnet50", 1, "auto", 1.5)])


def test_a_parts_rows_take_the_place_of_those_of_the_same_and_others_are_added():
    made = joined(WHOLE, PART)
    assert made["rows"] == [
        row("vgg16", 1, "auto", 1.0),
        row("vgg16", 1, "tensile", 2.0),
        row("vgg16", 2, "auto", 2.5),
        row("resnet50", 1, "auto", 1.5),
    ]
    assert made["workload"] == {"networks": ["vgg16", "resnet50"], "batch": 16}


def test_a_document_says_of_which_runs_it_is():
    assert told(WHOLE) == "Made by `a`, 2026-01-01."
    made = joined(WHOLE, PART)
    assert told(made) == "Made by `a`, 2026-01-01. Partly replaced by: `ab`, 2026-01-02."
    again = joined(made, document("abc", [row("vgg16", 1, "auto", 0.5)]))
    assert [each["command"] for each in again["later"]] == ["ab", "abc"]
    assert told(again).endswith("Partly replaced by: `ab`, 2026-01-02; `abc`, 2026-01-03.")


def test_of_many_runs_the_first_and_the_last_date_are_told():
    command = "tensile-db bench single; VGG-16 later"
    many = WHOLE | {"command": command, "later": [{"command": "b", "at": "2026-02-03T00:00"}]}
    assert told(many) == (
        "Made by `tensile-db bench single`, 2026-01-01. Partly replaced since, until 2026-02-03:"
        " its JSON names the commands."
    )
    assert told(WHOLE | {"later": 3 * many["later"]}).startswith(
        "Made by `a`, 2026-01-01. Partly replaced since"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("batch_a6000", "batch_titanrtx", "bounds_a6000", "first_iteration_a6000", "mixed_a6000"),
        *("phases_a6000", "scale_a6000", "single_a6000"),
    ],
)
def test_results_joined_with_themselves_are_what_they_were(name):
    document = read(RESULTS / f"{name}.json")
    made = joined(document, document)
    assert {**made, "later": document.get("later")} == {**document, "later": document.get("later")}


def test_figures_by_policy_are_joined_within_a_networks_row():
    def single(command, **of_network):
        return {**document(command, []), "bench": "single", "networks": [{"network": "vgg16", **of_network}]}

    whole = single("a", bound=[1], policies={"auto": 1, "tensile": 2}, timelines={"auto": [1]})
    del whole["rows"]
    part = single("ab", policies={"auto": 3, "tsplit": 4}, timelines={"auto": [3]})
    (made,) = joined(whole, part)["networks"]
    assert made == {
        "network": "vgg16",
        "bound": [1],
        "policies": {"auto": 3, "tensile": 2, "tsplit": 4},
        "timelines": {"auto": [3]},
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bench": "batch"}, "results of batch, and those of scale"),
        ({"device": {"name": "sim:p100", "memory_nbytes": 17}}, "device's memory_nbytes 16"),
        ({"workload": {"networks": ["vgg16"], "batch": 8}}, "batch 16, and these would have 8"),
    ],
)
def test_results_of_something_else_are_refused(change, message):
    with pytest.raises(InvalidRequest, match=message):
        joined(WHOLE, document("ab", WHOLE["rows"], **change))


def _single(budgets, *, policies=("auto",), network="vgg16", **more):
    """Results of one network, of these policies; budgets: percent of 1,000 bytes, with their EORs."""
    points = [
        {
            "budget_nbytes": 10 * share,
            "share": share / 100,
            "msr": 1 - share / 100,
            "eor": eor,
            "cbr": 1 / eor,
        }
        for share, eor in budgets.items()
    ]
    facts = {"ops": 5, "eager_peak_nbytes": 1_000, "eager_ns": 70, "least_nbytes": 90}
    row = {"network": network} | facts | {"policies": {each: figures_of(points) for each in policies}} | more
    return {
        "bench": "single",
        "command": "a",
        "at": "2026-01-01T00:00:00+00:00",
        "device": {"name": "sim:p100"},
        "workload": {"networks": [network], "batch": 16},
        "shares": [share / 100 for share in budgets if share % 10 == 0],
        "networks": [row],
    }


def test_points_within_some_of_the_budgets_take_the_place_of_those_alone():
    whole = _single(
        {60: 1.0, 50: 1.25, 20: 2.0}, policies=("auto", "tensile"), bound=_bound({60: 1.0, 20: 1.5})
    )
    part = _single({50: 1.125, 48: 1.1875, 20: 1.75}, bound=_bound({20: 1.625}))
    made = joined(whole, part)
    (row,) = made["networks"]
    auto = row["policies"]["auto"]
    assert [(point["share"], point["eor"]) for point in auto["points"]] == [
        (0.6, 1.0),
        (0.5, 1.125),
        (0.48, 1.1875),
        (0.2, 1.75),
    ]
    assert (auto["best_cbr"], auto["eor_at_msr"]) == (1.0, {"0.5": 1.125, "0.7": 1.75})
    assert row["policies"]["tensile"] == whole["networks"][0]["policies"]["tensile"]
    assert row["bound"] == _bound({60: 1.0, 20: 1.625})
    assert made["shares"] == [0.6, 0.5, 0.2]
    assert whole["networks"][0]["policies"]["auto"]["points"][1]["eor"] == 1.25


def _bound(budgets):
    return [{"budget_nbytes": 10 * share, "eor": eor} for share, eor in budgets.items()]


def test_a_point_that_is_refused_now_takes_the_place_of_one_that_was_made():
    part = _single({50: 1.125})
    refused = {"budget_nbytes": 500, "share": 0.5, "refused": "it needs more"}
    part["networks"][0]["policies"]["auto"]["points"] = [refused]
    (row,) = joined(_single({60: 1.0, 50: 1.25}), part)["networks"]
    assert row["policies"]["auto"]["points"][1] == refused
    assert row["policies"]["auto"]["eor_at_msr"]["0.5"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": "bert"}, "no auto of bert"),
        ({"policies": ("auto", "capuchin")}, "no capuchin of vgg16"),
        ({"bound": []}, "no bound of vgg16"),
        ({"eager_ns": 71}, "vgg16 has eager_ns 70 there, and 71 in the part"),
        ({"measured": {}}, "the best plans were run"),
    ],
)
def test_points_of_what_the_whole_has_no_others_of_are_refused(change, message):
    with pytest.raises(InvalidRequest, match=message) as refusal:
        joined(_single({60: 1.0, 50: 1.25}), _single({50: 1.125}, **change))
    assert refusal.value.hint == "Run the part within all budgets of the whole."


def test_figures_within_other_budgets_are_refused():
    document = read(RESULTS / "single_a6000.json")
    with pytest.raises(InvalidRequest, match="shares") as refusal:
        joined(document, document | {"shares": [0.3, 0.25]})
    assert refusal.value.hint == "Run the part with the options of the whole, or keep its results apart."


@pytest.mark.parametrize("newer", ["whole", "part"])
def test_a_machine_may_have_been_described_with_less(newer):
    devices = {each: {"name": "sim:p100", "memory_nbytes": 16} for each in ("whole", "part")}
    devices[newer]["steers"] = False
    part = WHOLE | {"device": devices["part"]}
    assert joined(WHOLE | {"device": devices["whole"]}, part)["rows"] == WHOLE["rows"]
    devices[newer]["steers"] = True
    with pytest.raises(InvalidRequest, match="device's steers"):
        joined(WHOLE | {"device": devices["whole"]}, part)


def test_mixed_jobs_of_other_networks_are_refused():
    mixed = {"bench": "mixed", "rows": [{"policy": "auto"}]}
    with pytest.raises(InvalidRequest, match="networks"):
        joined(WHOLE | mixed, PART | mixed)


@pytest.mark.parametrize("name", ["ablations_p100", "capacity_p100", "exact", "search_p100", "sharing_p100"])
def test_results_that_have_no_parts_are_refused(name):
    document = read(RESULTS / f"{name}.json")
    with pytest.raises(InvalidRequest, match="cannot be joined"):
        joined(document, document)


@pytest.mark.slow
def test_the_command_writes_what_is_joined_in_every_form(tmp_path):
    def results(policy, folder):
        point = {"msr": 0.5, "eor": 1.25, "cbr": 0.4, "peak_nbytes": 1, "time_ns": 2, "share": 0.5}
        made = document(policy, [row("vgg16", 1, policy, 1.25) | {"points": [point], "best": point}])
        versions = {"machine": {"processor": "a processor"}, "versions": {"python": "3.11"}}
        write(made | versions, tmp_path / folder, "scale_p100")
        return tmp_path / folder / "scale_p100.json"

    into, part = results("vanilla", "whole"), results("auto", "part")
    result = CliRunner().invoke(app, ["bench", "join", str(part), "--into", str(into)])
    assert result.exit_code == 0, result.output
    assert [each["policy"] for each in read(into)["rows"]] == ["vanilla", "auto"]
    assert "| auto |" in into.with_suffix(".md").read_text()


@pytest.mark.slow
def test_a_policy_that_one_network_alone_has_is_a_dash_in_the_row_of_the_others(tmp_path):
    document = read(RESULTS / "single_a6000.json")
    first, second, *_ = document["networks"]
    del first["policies"]["capuchin"]
    document["networks"] = [first, second]
    write(document, tmp_path, "made")
    lines = [line.split(" | ") for line in (tmp_path / "made.md").read_text().splitlines()]
    (head,) = (number for number, line in enumerate(lines) if line[:2] == ["| network", "eager peak GiB"])
    place = lines[head].index("capuchin")
    one, other = lines[head + 2 : head + 4]
    assert one[place] == "- / -"
    assert other[place] != "- / -"


@pytest.mark.slow
def test_results_that_cannot_be_told_take_the_place_of_none(tmp_path):
    document = read(RESULTS / "single_a6000.json")
    write(document, tmp_path, "made")
    before = (tmp_path / "made.json").read_bytes()
    with pytest.raises(KeyError):
        write(document | {"networks": [{"network": "vgg16"}]}, tmp_path, "made")
    assert (tmp_path / "made.json").read_bytes() == before
