"""PyTorch's allocator, by a model of it, gives the places that are wanted where all other holes are taken."""

from itertools import groupby
from random import Random

import pytest
import torch

from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.addresses import POWERS, end_of, placed, steered
from tensile_db.scheduler.sharing.growing_range import SMALL_NBYTES, in_granules, in_pages
from tensile_db.worker.devices.steered_memory import SteeredMemory, Wanted
from tests.graphs.random_lifetimes import GRANULE, random_lifetimes

MIB = 2**20
WALL = SMALL_NBYTES + GRANULE


class Memory:
    """The allocator's range of large tensors, some addresses behind 0; what is let go of goes at once."""

    def __init__(self):
        self.range = growing_range._Range(growing_range.PAGE_NBYTES)

    def allocate(self, nbytes):
        return Storage(self, nbytes)

    def spans(self):
        return sorted((address, address + size) for address, size in self.range._held.values())


class Storage:
    """A piece of it."""

    BASE = 1 << 40

    def __init__(self, memory, nbytes):
        assert nbytes > SMALL_NBYTES, "this comes from another range"
        self._memory, self._holder = memory, object()
        memory.range.take(self._holder, in_granules(nbytes))

    def data_ptr(self):
        return self.BASE + self._memory.range._held[self._holder][0]

    def __del__(self):
        self._memory.range.give(self._holder)


def nothing(memory, place):
    pass


def run(found, wanted, *, shuffle=lambda pairs: pairs, before=nothing, after=nothing):
    """Have each come where it is wanted; return where all have come, what steered them, and the memory.

    before, after: what others do then with the memory, of each place.
    """
    memory = Memory()
    steering = SteeredMemory(memory.allocate, end_of(found, wanted))
    alive, came = {}, {}
    pairs = sorted(enumerate(zip(found, wanted, strict=True)), key=lambda pair: pair[1][0].begin)
    for begin, group in groupby(pairs, key=lambda pair: pair[1][0].begin):
        for place in [place for place in alive if found[place].end <= begin]:
            del alive[place]
            steering.let_go(place)
        together = list(group)
        with steering.opened([Wanted(address, each.nbytes, True) for _, (each, address) in together]):
            for place, (each, _) in shuffle(together):
                before(memory, place)
                alive[place] = memory.allocate(each.nbytes)
                came[place] = alive[place].data_ptr() - Storage.BASE
            for place, _ in together:
                after(memory, place)
            for place, (each, _) in together:
                steering.note(place, alive[place].data_ptr(), each.nbytes)
    return [came[place] for place in range(len(found))], steering, memory


@pytest.mark.parametrize("power", POWERS)
def test_all_comes_where_it_was_worked_out(power):
    random = Random(2)
    for _ in range(10):
        found = random_lifetimes(random)
        wanted = steered(found, placed(found, power))
        came, steering, memory = run(found, wanted)
        assert came == wanted
        assert steering.astray == 0
        assert memory.range.nbytes == in_pages(end_of(found, wanted) + WALL)


def test_in_another_order_all_comes_somewhere_and_mostly_where_it_was_worked_out():
    random = Random(4)
    ends = []
    for _ in range(10):
        found = random_lifetimes(random)
        wanted = steered(found, placed(found, 0.2))
        came, _, memory = run(found, wanted, shuffle=lambda pairs: random.sample(pairs, len(pairs)))
        alike = sum(one == other for one, other in zip(came, wanted, strict=True))
        assert alike > 0.5 * len(found)
        ends.append(memory.range.nbytes / in_pages(end_of(found, wanted) + WALL))
    assert max(ends) < 1.5


def test_what_is_asked_for_after_by_others_comes_behind_the_range_and_stays_there():
    found = random_lifetimes(Random(5))
    wanted = steered(found, placed(found, 0.2))
    kept = []

    def take_once(memory, _):
        if not kept:
            kept.append(memory.allocate(15 * MIB))

    came, steering, memory = run(found, wanted, after=take_once)
    assert came == wanted
    assert steering.astray == 0
    assert kept[0].data_ptr() - Storage.BASE >= end_of(found, wanted)
    assert memory.range.nbytes == in_pages(end_of(found, wanted) + WALL + 15 * MIB)


@pytest.mark.parametrize("nbytes", [2 * MIB, 5 * MIB, 15 * MIB])
@pytest.mark.parametrize("kept_for", [1, 5, 1000])
def test_what_others_take_where_something_is_open_costs_about_as_much_again(nbytes, kept_for):
    random = Random(6)
    for _ in range(10):
        found = random_lifetimes(random)
        wanted = steered(found, placed(found, 0.2))
        kept, times = [], random.sample(range(len(found)), 3)

        def take(memory, place, kept=kept, times=times):
            if place in times:
                kept.append(memory.allocate(nbytes))
            elif kept and place > min(times) + kept_for:
                kept.clear()

        came, steering, memory = run(found, wanted, before=take)
        assert len(came) == len(found)
        assert (came == wanted) or steering.astray > 0
        # All three, and whoever finds no place for it.
        most = 3 * nbytes + 4 * max(each.nbytes for each in found)
        assert memory.range.nbytes <= in_pages(end_of(found, wanted) + WALL + most)


def test_a_range_that_nothing_fits_is_left_to_the_allocator():
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 8 * MIB)
    with steering.opened([Wanted(0, 9 * MIB, True)]):
        storage = memory.allocate(9 * MIB)
        steering.note("a", storage.data_ptr(), 9 * MIB)
        steering.note("nowhere", None, 2 * MIB)
    assert storage.data_ptr() - Storage.BASE > 8 * MIB
    # It fits nowhere and came elsewhere, and the other one came nowhere.
    assert steering.astray == 3
    steering.let_go("a")
    steering.let_go("nowhere")


def test_what_is_free_is_let_go_of_in_the_end():
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 80 * MIB)
    with steering.opened([Wanted(30 * MIB, 7 * MIB, True)]):
        storage = memory.allocate(7 * MIB)
        steering.note("a", storage.data_ptr(), 7 * MIB)
    assert sum(end - begin for begin, end in memory.spans()) == 81 * MIB + GRANULE
    steering.release()
    assert memory.spans() == [(30 * MIB, 37 * MIB)]


def test_what_is_copied_elsewhere_leaves_its_place_to_the_next():
    memory, count, nbytes = Memory(), 8, 50 * MIB
    steering = SteeredMemory(memory.allocate, count * nbytes)
    copies = []
    for place in range(count):
        with steering.opened([Wanted(place * nbytes, nbytes, True)]):
            # A kernel has laid it out otherwise.
            own = memory.allocate(nbytes)
            copies.append(memory.allocate(nbytes))
            steering.note(place, copies[-1].data_ptr(), nbytes)
            del own
    assert steering.astray > 0
    # One more than all, as where nothing is steered.
    assert memory.range.nbytes == in_pages((count + 1) * nbytes + WALL)


def test_who_stays_in_an_opened_place_costs_what_does_not_fit_beside():
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 600 * MIB)
    with steering.opened([Wanted(0, 300 * MIB, True)]):
        stranger = memory.allocate(2 * MIB)
        storage = memory.allocate(300 * MIB)
        steering.note("a", storage.data_ptr(), 300 * MIB)
    assert stranger.data_ptr() == Storage.BASE
    assert memory.range.nbytes == in_pages(900 * MIB + WALL)


def test_what_is_there_for_a_moment_leaves_its_place_closed():
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 80 * MIB)
    with steering.opened([Wanted(0, 30 * MIB, False), Wanted(40 * MIB, 8 * MIB, True)]):
        storage = memory.allocate(8 * MIB)
        memory.allocate(30 * MIB)
        steering.note("a", storage.data_ptr(), 8 * MIB)
    another = memory.allocate(30 * MIB)
    assert another.data_ptr() - Storage.BASE > 80 * MIB
    assert (storage.data_ptr() - Storage.BASE, steering.astray) == (40 * MIB, 0)


def test_what_ends_within_is_not_replaced_by_what_plugs_fail_with(monkeypatch):
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 80 * MIB)

    def none_left(nbytes):
        raise torch.OutOfMemoryError("none left")

    with pytest.raises(KeyboardInterrupt), steering.opened([Wanted(0, 30 * MIB, True)]):  # noqa: PT012
        monkeypatch.setattr(steering, "_allocate", none_left)
        raise KeyboardInterrupt


def test_where_a_plug_cannot_be_had_nothing_is_steered_but_the_rest_goes_on(monkeypatch):
    memory = Memory()
    steering = SteeredMemory(memory.allocate, 80 * MIB)

    def none_left(nbytes):
        raise torch.OutOfMemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(steering, "_allocate", none_left)
        with steering.opened([Wanted(10 * MIB, 30 * MIB, True)]):
            storage = memory.allocate(30 * MIB)
            steering.note("a", storage.data_ptr(), 30 * MIB)
    assert steering.astray > 0
