"""The two parts of `plan-time`'s results: one can be measured alone, while the other stays as it was."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tensile_db.bench.reports.provenance import origin


class Part(StrEnum):
    """What is measured together."""

    #: First plans, and those of ever deeper networks.
    FIRST = "first"
    #: Re-plans and arrivals.
    AGAIN = "again"


#: Where a document has a part's results: older ones have re-plans without arrivals, or neither.
_NAMES = {Part.FIRST: ("rows", "curve"), Part.AGAIN: ("again", "arrived")}


def results_of(document: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """Return a part's results as the document has them, by name; empty where it has none."""
    return {name: document[name] for name in _NAMES[part] if name in document}


def staying(known: Mapping[str, Any], only: Part) -> dict[str, Any]:
    """Return what stays of known results where one part is measured alone; empty where nothing is there.

    Under `kept` is the run that made what stays: the newest one that measured that part.
    """
    part = Part.AGAIN if only is Part.FIRST else Part.FIRST
    stays = results_of(known, part)
    before = known.get("kept")
    if before is None or part_of(before) is not part:
        before = {"part": part} | origin(known)
    return stays | {"kept": before} if stays else {}


def part_of(kept: Mapping[str, Any]) -> Part:
    """Return the part that stayed."""
    # Older documents do not say: of these, first plans alone could stay.
    return Part(kept.get("part", Part.FIRST))
