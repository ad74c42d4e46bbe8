"""The tables of `plan-time`."""

from typing import Any

from tensile_db.bench.networks.workloads import title_of
from tensile_db.bench.reports.markdown import MIB, table
from tensile_db.bench.reports.plan_time_parts import Part, part_of


def markdown(document: dict[str, Any]) -> str:
    """Return the tables: networks, re-plans, arrivals, and the curve."""
    networks = table(
        ["network", "memory", "policy", "seconds", "MiB", "MSR", "EOR"],
        (
            [
                title_of(row["network"]),
                _memory(row),
                made_by(row),
                *_cells(row),
            ]
            for row in document["rows"]
        ),
    )
    again = table(
        [
            *("network", "planned again after", "policy", "seconds", "MiB", "MSR", "EOR"),
            *("times a first plan's", "improved in seconds", "to times a first plan's"),
        ],
        (
            [
                title_of(row["network"]),
                _CHANGES[row["change"]],
                row["policy"],
                *_cells(row),
                row.get("slower"),
                row.get("improved_s"),
                row.get("improved"),
            ]
            for row in document["again"]
        ),
    )
    curve = table(
        ["ops", "policy", "seconds", "MiB", "MSR", "EOR"],
        ([f"{row['ops']:,}", made_by(row), *_cells(row)] for row in document["curve"]),
    )
    between = (
        "Planned again, from half of eager's peak: seconds that others wait for, and how many times a first"
        " plan's time an iteration takes then; where better plans are looked for, while nobody waits, what"
        " that takes and comes to:"
    )
    older = _older(document) if "kept" in document else ""
    again = f"{again}\n\n{_arrivals(document['arrived'])}" if "arrived" in document else again
    deeper = "Ever deeper ResNets, half of eager's peak, or what whole ops need where that is more:"
    return f"{older}{networks}\n\n{between}\n\n{again}\n\n{deeper}\n\n{curve}"


def _older(document: dict[str, Any]) -> str:
    """Return the sentence that says which results stayed from another run, and of which run they are."""
    kept = document["kept"]
    again = "re-plans and arrivals" if "arrived" in document else "the re-plans"
    what = f"All but {again}" if part_of(kept) is Part.FIRST else again.capitalize()
    # Older documents do not say; seconds are those of a machine.
    on = f", {kept['machine']['processor']}" if "machine" in kept else ""
    return f"{what}: `{kept['command']}`, {kept['at']}{on}.\n\n"


def _memory(row: dict[str, Any]) -> str:
    """Return what a row's jobs were planned within, which may be more than was asked for."""
    share = row["share"]
    if share is None:
        return "ample"
    # Older documents do not say.
    given = row.get("given", share)
    if given > share + _ROUNDED:
        return f"{given:.1%} of eager's peak (asked: {share:.0%})"
    return f"{share:.0%} of eager's peak"


#: More than that, a share is another one.
_ROUNDED = 1e-4


def made_by(row: dict[str, Any]) -> str:
    """Return a row's policy, and whether it plans for somebody who waits."""
    policy: str = row["policy"]
    # Older documents do not say.
    return f"{policy}, at once" if row.get("at_once") else policy


def _arrivals(rows: list[dict[str, Any]]) -> str:
    made = table(
        [
            *("newcomer", "running", "memory", "seconds", "others keep their plans", "slowdown"),
            *("improved in seconds", "to a slowdown of", "with care in seconds", "slowdown"),
            *("foreseen in seconds", "splits in seconds"),
        ],
        (
            [
                title_of(row["newcomer"]),
                "another one" if row["running"] == 1 else f"one of each of {row['running']} others",
                f"{row['share']:.0%} of eager's peaks",
                row["seconds"],
                "yes" if row["beside"] else "no",
                row["slowdown"],
                row["mended_s"],
                row["mended"],
                row["careful_s"],
                row["careful"],
                # Older documents do not say.
                row.get("foreseen_s"),
                row.get("splits_s"),
            ]
            for row in rows
        ),
    )
    return (
        "A newcomer arrives where others run: seconds that it waits for its first plan; what an iteration of"
        " all takes then, as a multiple of what their ops take one after another, which is less than 1 where"
        " lanes compute between each other's small ops; what looking for better lanes and plans takes while"
        " nobody waits, and comes to; and both for an answer made with care while the newcomer waits. Before"
        " the planner is asked: what it works out of the newcomer's graph as soon as that is captured, and"
        " what another process takes to find the splits of all these jobs, where they are worth looking"
        f" for:\n\n{made}"
    )


#: What makes a re-plan, as `planned_alone.py` does it.
_CHANGES = {"drift": "latencies 0.7 to 1.4 times", "arrival": "a fifth less memory"}


def _cells(row: dict[str, Any]) -> list[object]:
    if "refused" in row:
        return [row["refused"], None, None, None]
    return [row["seconds"], f"{row['memory_nbytes'] / MIB:,.1f}", row["msr"], row["eor"]]
