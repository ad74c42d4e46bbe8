"""Changes to the swaps of a residency that can be undone."""

from tensile_db.scheduler.analysis.residency import Absence, Residency


class Changes:
    """A residency's changes since they were last kept.

    Of swaps alone: what recomputations need is not undone.
    """

    def __init__(self, residency: Residency) -> None:
        self.residency = residency
        #: What was there before and is there now; None where there is nothing.
        self._made: list[tuple[Absence | None, Absence | None]] = []

    def add(self, absence: Absence) -> None:
        """Take a tensor off the device."""
        self.residency.add(absence)
        self._made.append((None, absence))

    def replace(self, old: Absence, new: Absence) -> None:
        """Change an absence's extent."""
        self.residency.replace(old, new)
        self._made.append((old, new))

    def remove(self, absence: Absence) -> None:
        """Keep the tensor on the device after all."""
        self.residency.remove(absence)
        self._made.append((absence, None))

    def keep(self) -> None:
        """Let everything stay as it is now."""
        self._made.clear()

    def undo(self) -> None:
        """Have everything as it was when it was last kept."""
        for old, new in reversed(self._made):
            if new is None:
                assert old is not None, "something was changed"
                self.residency.add(old)
            elif old is None:
                self.residency.remove(new)
            else:
                self.residency.replace(new, old)
        self._made.clear()
