"""Results that are known already, to which others are added."""

from collections.abc import Mapping
from typing import Any

from tensile_db.errors import InvalidRequest


def check_alike(
    known: Mapping[str, Any],
    document: Mapping[str, Any],
    *asked: str,
    hint: str = "Give the new results a --name of their own.",
) -> None:
    """Raise InvalidRequest unless a document is of what a known one is of.

    asked: what else was asked of both, beside the device: of the document itself, or of its workload.
    hint: what else to do with what is not alike.
    """
    device = document["device"]
    # Either machine may have been described with less when it was looked at.
    pairs = {
        f"device's {what}": (each, device[what]) for what, each in known["device"].items() if what in device
    }
    pairs |= {what: (_said_of(known, what), _said_of(document, what)) for what in asked}
    for what, (before, now) in pairs.items():
        if before != now:
            raise InvalidRequest(
                f"the results there are have {what} {before}, and these would have {now}",
                hint=hint,
            )


def _said_of(document: Mapping[str, Any], what: str) -> object:
    return document[what] if what in document else document["workload"][what]
