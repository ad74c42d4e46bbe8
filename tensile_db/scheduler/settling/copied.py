"""The copies of a timeline, each with the absence that it begins or ends."""

from collections.abc import Iterator
from dataclasses import dataclass

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """One copy: [begin_ns, end_ns)."""

    absence: Absence
    to_host: bool
    begin_ns: int
    end_ns: int


def copies_of(residency: Residency, timeline: Timeline) -> Iterator[Copied]:
    """Yield the copies, ascending by begin.

    timeline: of the plan assembled from `residency`.
    """
    #: By tensor and direction, the swaps whose copies are still to come, the next one last.
    left: dict[tuple[TensorId, bool], list[Absence]] = {}
    for tensor, absences in residency.absences.items():
        swaps = [absence for absence in absences if not absence.recompute]
        left[tensor, True] = sorted(swaps, key=lambda absence: absence.out_position, reverse=True)
        left[tensor, False] = sorted(swaps, key=lambda absence: absence.end % absence.gap.ops, reverse=True)
    for tensor, out, begin_ns, end_ns in timeline.moves.tolist():
        absence = left[tensor, bool(out)].pop()
        yield Copied(absence=absence, to_host=bool(out), begin_ns=begin_ns, end_ns=end_ns)
