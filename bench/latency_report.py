"""The results of bench.latency as Markdown."""

import os
from typing import Any

from bench.results import table

SOURCE = "`{command}`, {at}: {samples} samples; {workload}."

NOISE = """\
The machine was shared while this ran (load average {before:.1f} before and {after:.1f} after, {cores} cores):
the noise of others, if any, is in what models learn from and in what they are compared with."""

AVERAGES = """\
Over {models} models: R² {mean_r_squared} on average, {median_r_squared} the median; of logarithms
{mean_r_squared_log} and {median_r_squared_log}; median relative error {median_relative_error}. The 2021 draft
of TENSILE has R² 0.582 on average and 0.805 for convolutions."""

PLANS = """\
Plans for a budget of {budget} of vanilla's peak, from predicted latencies (cold) and from measured ones
(steady), each really run. EOR is against vanilla's iterations of the same number."""


AGAIN = """\
"Again": the same ops of all shapes measured a second time, as a prediction of the first. Both measurements
have the machine's noise in them, so that a perfect model would miss about half as much of R²."""

_ERRORS = ("r_squared", "r_squared_log", "median_relative_error")

#: Ops whose share of variance says nothing.
_FEW = 10


def markdown(document: dict[str, Any]) -> str:
    """Return the page."""
    load = document["load_average"]
    return (
        "\n\n".join(
            [
                f"# Latency predictor on {document['hardware']}",
                SOURCE.format(**document),
                NOISE.format(before=load["before"][0], after=load["after"][0], cores=os.cpu_count()),
                "## By kind of op, on shapes held out",
                _kinds(document),
                AGAIN,
                AVERAGES.format(**document["average"]),
                "## Whole networks that no model has seen",
                _networks(document),
                "## First plans",
                PLANS.format(budget=document["budget"]),
                _plans(document),
            ]
        )
        + "\n"
    )


def _kinds(document: dict[str, Any]) -> str:
    rows = [
        [kind, of["samples"], *(said.get(name, "") for said in (of, of.get("again", {})) for name in _ERRORS)]
        for kind, of in document["kinds"].items()
        if "r_squared" in of
    ]
    said = ["R²", "R² of logarithms", "median relative error"]
    return table(["kind of op", "samples", *said, *(f"{name}, again" for name in said)], rows)


def _networks(document: dict[str, Any]) -> str:
    head = ["network", "ops learned", "by", "predicted/measured sum", "R²", "R² of logarithms"]
    rows = [
        [
            of["network"],
            f"{of['learned_ops']}/{of['ops']}",
            label,
            round(said["sum_ns"] / of["measured_ns"], 2),
            said["all"]["r_squared"],
            said["all"]["r_squared_log"],
            said["all"]["median_relative_error"],
            said["convolutions"]["r_squared"] if said["convolutions"]["count"] >= _FEW else "",
        ]
        for of in document["networks"]
        for label, said in of["predicted"].items()
    ]
    return table([*head, "median relative error", "R² of convolutions"], rows)


def _plans(document: dict[str, Any]) -> str:
    head = ["network", "plan", "MSR", "EOR, iteration one", "EOR, later", "EOR predicted"]
    rows = [
        [
            of["network"],
            row["plan"],
            row["msr"],
            row["eor_of_iteration_one"],
            row["eor_of_later_iterations"],
            row["predicted_eor"],
            round(row["median_iteration_ns"] / row["predicted_iteration_ns"], 2),
        ]
        for of in document["networks"]
        for row in of["plans"]
    ]
    return table([*head, "measured/predicted time"], rows)
