"""A job among those that take turns on a device (turns.py): its share, and where it is between two turns."""

from dataclasses import dataclass
from enum import StrEnum

from tensile_db.scheduler.sharing.orders import Standing
from tensile_db.scheduler.sharing.share import Share


class Phase(StrEnum):
    """See the picture in turns.py."""

    AWAY = "away"
    APPROACHING = "approaching"
    TURN = "turn"
    LEAVING = "leaving"
    LINGERING = "lingering"


@dataclass(slots=True, kw_only=True)
class Member:
    """One job.  Changed by Turns only."""

    standing: Standing
    share: Share
    #: While the job changes its share: the new one, for which there is room.
    becoming: Share | None = None
    asks: bool = False
    #: It asks, and can approach.
    comes_ahead: bool = False
    phase: Phase = Phase.AWAY
    #: What lingers of its state, or was left when it was dismissed; and since which turn, counted.
    lingering_nbytes: int = 0
    lingers_since: int = 0
    #: It asks, and there was no room for its turn.
    was_refused: bool = False
    #: The larger share for which there was no room.
    awaited: Share | None = None
    #: It asked when the last quiet ended, and has had no turn since.
    waited_through_quiet: bool = False
    #: It frees all that it holds.
    departs: bool = False
    #: It frees something, between turns.
    frees: bool = False

    @property
    def has_turn(self) -> bool:
        """Whether it may compute."""
        return self.phase is Phase.TURN

    @property
    def is_in_transit(self) -> bool:
        """Whether its state comes or goes while others compute."""
        return self.phase in (Phase.APPROACHING, Phase.LEAVING)

    @property
    def always_nbytes(self) -> int:
        """What it may hold between turns, in bytes."""
        becoming_nbytes = self.becoming.always_nbytes if self.becoming is not None else 0
        return max(self.share.always_nbytes, becoming_nbytes)

    @property
    def beyond_nbytes(self) -> int:
        """What it may hold beyond `always_nbytes`, in bytes."""
        match self.phase:
            case Phase.AWAY:
                return 0
            case Phase.TURN:
                return self.share.ephemeral_nbytes
            case Phase.APPROACHING:
                return self.share.transit_nbytes
            case Phase.LINGERING:
                return self.lingering_nbytes
            case Phase.LEAVING:
                return max(self.share.transit_nbytes, self.lingering_nbytes)
