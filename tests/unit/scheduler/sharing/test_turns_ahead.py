"""States moved ahead of turns, or lingering after them: what is held, and that everybody gets on."""

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.turns import Turns
from tests.examples import examples

MEMORY = 100


def share(lane=0, state=20, ephemeral=60):
    return Share(lane=lane, resident_nbytes=0, ephemeral_nbytes=ephemeral, transit_nbytes=state)


def turns_of(*shares, memory=80):
    turns = Turns(memory_nbytes=memory, policy=SHARING_POLICIES["auto"])
    for job, held in enumerate(shares):
        turns.come_in(job)
        assert turns.begin_change(job, held)
        turns.end_change(job)
        turns.ask(job, left_ns=1, ahead=True)
    return turns


def approaching(turns):
    return [job for job in range(3) if turns.phase_of(job) is Phase.APPROACHING]


def take_turn(turns, job):
    assert turns.has_turn(job)
    turns.serve(job, 1)
    turns.end(job)
    turns.validate()


def test_a_lane_needs_room_for_one_state_in_transit():
    assert needed_nbytes([share(), share(state=10), share()]) == 80
    assert needed_nbytes([share(), share(lane=1)]) == 160


def test_only_the_next_one_of_a_lane_approaches_and_then_it_has_the_next_turn():
    turns = turns_of(share(), share(), share())
    assert turns.grant() == [0]
    assert approaching(turns) == [1]
    assert turns.held_nbytes == 80
    # Deserves it more by now; it is its turn after the next one.
    turns.serve(1, 100)
    take_turn(turns, 0)
    assert turns.grant() == [1]


def test_the_next_one_computes_while_a_state_leaves_and_no_other_approaches():
    turns = turns_of(share(), share(), share())
    turns.grant()
    take_turn(turns, 0)
    assert turns.grant() == [1]
    assert turns.phase_of(0) is Phase.LEAVING
    assert turns.held_nbytes == 80
    assert approaching(turns) == []
    turns.gone(0)
    turns.grant()
    assert approaching(turns) == [2]


def test_without_an_approach_a_turn_begins_as_it_always_did():
    turns = turns_of(share(), share(), share())
    turns.ask(1, left_ns=1, ahead=False)
    assert turns.grant() == [0]
    assert approaching(turns) == []
    take_turn(turns, 0)
    assert turns.grant() == [1]


def test_a_turn_waits_for_two_states_that_leave():
    turns = turns_of(share(), share(), share())
    turns.grant()
    take_turn(turns, 0)
    assert turns.grant() == [1]
    take_turn(turns, 1)
    assert turns.grant() == []
    assert approaching(turns) == []
    turns.gone(0)
    assert turns.grant() == [2]


def test_who_gives_up_its_approach_leaves_the_turn_to_others_once_it_is_gone():
    turns = turns_of(share(), share(), share())
    turns.grant()
    assert approaching(turns) == [1]
    turns.withdraw(1)
    take_turn(turns, 0)
    # Two states are on the device still.
    assert turns.grant() == []
    turns.gone(1)
    assert turns.grant() == [2]


def test_nobody_approaches_in_memory_that_another_lane_waits_for():
    turns = turns_of(share(), share(), share(lane=1, state=0, ephemeral=40), memory=100)
    turns.withdraw(1)
    assert turns.grant() == [0, 2]
    turns.end(2)
    turns.come_in(3)
    assert turns.begin_change(3, Share(lane=2, resident_nbytes=10, ephemeral_nbytes=0))
    turns.end_change(3)
    turns.ask(1, left_ns=1, ahead=True)
    turns.ask(2, left_ns=1)
    assert turns.grant() == []
    assert approaching(turns) == []
    turns.withdraw(2)
    turns.grant()
    assert approaching(turns) == [1]


@st.composite
def shares(draw, jobs):
    """Return a share for each job, which fit together."""
    lanes = draw(st.integers(1, 2))
    made = {}
    for job in jobs:
        state = draw(st.integers(1, 15))
        kind = draw(st.sampled_from(["stays", "ahead", "ahead", "within"]))
        made[job] = Share(
            lane=draw(st.integers(0, lanes - 1)),
            resident_nbytes=state if kind == "stays" else 0,
            ephemeral_nbytes=draw(st.integers(15, 40)),
            transit_nbytes=state if kind == "ahead" else 0,
            recorded_nbytes=draw(st.integers(0, 15)) if kind == "stays" else 0,
        )
    if needed_nbytes(made.values()) <= MEMORY:
        return made
    ephemeral = draw(st.integers(15, 85))
    return {
        job: Share(lane=0, resident_nbytes=0, ephemeral_nbytes=ephemeral, transit_nbytes=15) for job in jobs
    }


class Device(RuleBasedStateMachine):
    """Jobs come, go, and are planned anew in any phase."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(memory_nbytes=MEMORY, policy=SHARING_POLICIES["auto"])
        self.jobs: list[int] = []
        self.arrivals = 0
        #: Shares not taken up yet.
        self.offered: dict[int, Share] = {}

    def in_phase(self, phase: Phase) -> list[int]:
        return [job for job in self.jobs if self.turns.phase_of(job) is phase]

    def going(self) -> list[int]:
        """Return whose state goes: after a turn, or since an approach was given up."""
        given_up = [job for job in self.in_phase(Phase.APPROACHING) if not self.turns.asks(job)]
        return sorted(self.in_phase(Phase.LEAVING) + given_up)

    def free(self) -> list[int]:
        """Return who may ask."""
        ended = self.in_phase(Phase.AWAY) + self.in_phase(Phase.LINGERING)
        return sorted(job for job in ended if job not in self.offered)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Four jobs that compute."""
        self.plan(data, 4)
        for job in list(self.offered):
            self.try_to_take_up(job)
        self.all_ask()

    @precondition(lambda self: not self.offered and len(self.jobs) < 6)
    @rule(data=st.data(), count=st.integers(0, 2))
    def plan(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.arrivals += 1
            self.jobs.append(self.arrivals)
            self.turns.come_in(self.arrivals)
        if self.in_phase(Phase.APPROACHING):
            event("planned anew during an approach")
        if self.in_phase(Phase.LEAVING):
            event("planned anew while a state leaves")
        self.offered = data.draw(shares(self.jobs))
        for job in self.jobs:
            self.turns.withdraw(job)

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def take_up(self, data: st.DataObject) -> None:
        self.try_to_take_up(data.draw(st.sampled_from(sorted(self.offered))))

    def try_to_take_up(self, job: int) -> bool:
        self.turns.dismiss(job)
        if self.turns.phase_of(job) is not Phase.AWAY or not self.turns.begin_change(job, self.offered[job]):
            return False
        self.turns.end_change(job)
        del self.offered[job]
        return True

    @precondition(lambda self: self.free())
    @rule()
    def all_ask(self) -> None:
        for job in self.free():
            self.turns.ask(job, left_ns=1, ahead=True)
        self.turns.grant()
        if self.in_phase(Phase.APPROACHING):
            event("a job approaches")

    @precondition(lambda self: self.going())
    @rule(data=st.data())
    def gone(self, data: st.DataObject) -> None:
        dismissed = self.turns.take_dismissed()
        if dismissed is not None:
            event("a state that lingered is dismissed")
            assert dismissed in self.going()
        self.turns.gone(data.draw(st.sampled_from(self.going())))
        self.turns.grant()

    @precondition(lambda self: self.in_phase(Phase.TURN))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.in_phase(Phase.TURN)))
        self.turns.serve(job, 1)
        share = self.turns.share_of(job)
        lingering = 0 if share.transit_nbytes else data.draw(st.integers(0, share.ephemeral_nbytes))
        if lingering:
            event("a state lingers")
        self.turns.end(job, lingering_nbytes=lingering)
        if len(self.turns.grant()) and self.in_phase(Phase.LEAVING):
            event("one computes while another leaves")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        if self.turns.phase_of(job) is Phase.APPROACHING:
            event("an approach is given up")
        self.turns.withdraw(job)
        self.turns.grant()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Done, failed or killed: in any phase."""
        job = data.draw(st.sampled_from(self.jobs))
        event(f"one is over while {self.turns.phase_of(job)}")
        self.jobs.remove(job)
        self.offered.pop(job, None)
        self.turns.leave(job)
        self.turns.grant()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), priority=st.integers(-1, 2))
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        self.turns.set_priority(data.draw(st.sampled_from(self.jobs)), priority)

    @invariant()
    def no_more_is_held_than_there_is(self) -> None:
        self.turns.validate()

    def teardown(self) -> None:
        """All take up their shares, and everybody has turns, in bounded time."""
        turns_of = dict.fromkeys(self.jobs, 0)
        for job in self.jobs:
            # Else the one with the highest would have most turns.
            self.turns.set_priority(job, 0)
        # Of what the others have had more, some may be made up for.
        for _ in range(40 * (len(self.jobs) + 1)):
            for job in sorted(self.offered):
                self.try_to_take_up(job)
            self.all_ask()
            for job in self.in_phase(Phase.TURN):
                turns_of[job] += 1
                self.turns.serve(job, 1)
                self.turns.end(job)
                self.turns.validate()
            for job in self.going():
                self.turns.gone(job)
            self.turns.grant()
            self.turns.validate()
        assert not self.offered, "somebody waits for ever for memory"
        assert all(turns_of.values()), f"somebody starves: {turns_of}"


Device.TestCase.settings = examples(200, stateful_step_count=40)
TestDevice = Device.TestCase
