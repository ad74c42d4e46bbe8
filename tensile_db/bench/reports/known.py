"""Results that are known already, to which others are added."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from tensile_db.errors import InvalidRequest
from tensile_db.scheduler.plan import DeviceSpec

_DEFAULTS = {field.name: field.default for field in fields(DeviceSpec) if field.default is not MISSING}


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
    # A machine may have been described with less when it was looked at.
    before, now = (_DEFAULTS | each["device"] for each in (known, document))
    pairs = {f"device's {what}": (each, now.get(what)) for what, each in before.items()}
    pairs |= {what: (_said_of(known, what), _said_of(document, what)) for what in asked}
    for what, (known_as, found_as) in pairs.items():
        if known_as != found_as:
            raise InvalidRequest(
                f"the results there are have {what} {known_as}, and these would have {found_as}",
                hint=hint,
            )


def _said_of(document: Mapping[str, Any], what: str) -> object:
    return document[what] if what in document else document["workload"][what]
