"""Workers that come, go and act on placements when they like: every job ends, and moves come to rest."""

import random
from dataclasses import dataclass, field

from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.placing import Need, Offer, can_ever_take, place
from tests.examples import examples

#: Of one job, however long its story.
MOST_MOVES = 8


@dataclass
class Job:
    """A job's row, and what only its worker will find out."""

    id: int
    size: int
    is_known: bool
    #: queued, preparing, waiting, running, ended or failed.
    state: str = "queued"
    worker: int | None = None
    least_known: int = 0
    cache: str | None = None
    begun: bool = False
    meant_for: int | None = None
    moves: int = 0
    passes: int = 0

    @property
    def least(self):
        """A plan halves what it holds."""
        return self.size // 2


@dataclass
class Worker:
    id: int
    memory: int
    places: int
    alone: bool
    cache: str
    speed: int
    alive: bool = True

    def takes(self, job):
        """Return what a job gets here."""
        return min(job.size, self.memory)


@dataclass
class World:
    """The catalog, and workers that look at it one at a time."""

    workers: list[Worker]
    jobs: list[Job] = field(default_factory=list)

    def held(self, worker, *states):
        states = states or ("preparing", "waiting", "running")
        return [job for job in self.jobs if job.worker == worker.id and job.state in states]

    def shared(self, worker):
        return sum(worker.takes(job) for job in self.held(worker, "running"))

    def alive(self):
        return [worker for worker in self.workers if worker.alive]

    def placements(self):
        offers = [
            Offer(
                worker=worker.id,
                device="cpu",
                cache=worker.cache,
                memory_nbytes=worker.memory,
                shared_nbytes=self.shared(worker),
                held=len(self.held(worker)),
                preparing=len(self.held(worker, "preparing")),
                in_line=len(self.held(worker, "waiting")),
                places=worker.places,
                alone=worker.alone,
                flops_per_s=worker.speed,
            )
            for worker in self.alive()
        ]
        needs = [
            Need(
                job=job.id,
                least_nbytes=job.least_known,
                wanted_nbytes=job.size if job.is_known else None,
                caches=frozenset({job.cache} if job.cache else ()),
                begun=job.begun,
                line_of=job.worker,
                meant_for=job.meant_for,
            )
            for job in self.jobs
            if job.state in ("queued", "waiting")
        ]
        return place(needs, offers)

    def look(self, worker):
        """A worker claims what is its own and gives back what is not; return whether anything changed."""
        mine = [p for p in self.placements() if worker.id in (p.worker, p.line_of)]
        changed = False
        for placement in mine:
            job = self.jobs[placement.job]
            if placement.line_of is None:
                job.state, job.worker, job.meant_for = "preparing", worker.id, None
                changed = True
            elif placement.moves:
                job.state, job.worker, job.moves = "queued", None, job.moves + 1
                job.meant_for = placement.worker
                changed = True
        self.check()
        return changed

    def prepare(self, worker):
        """Its first job's rows are read and its graph is known."""
        for job in self.held(worker, "preparing")[:1]:
            job.cache = worker.cache
            if job.least <= worker.memory:
                job.state = "waiting"
                return
            larger = max(other.memory for other in self.alive())
            job.least_known, job.worker = job.least, None
            job.state = "queued" if job.least <= larger else "failed"
            job.passes += job.state == "queued"

    def admit(self, worker):
        """The first in line runs if there is room; nobody passes it."""
        for job in self.held(worker, "waiting"):
            running = self.held(worker, "running")
            if (worker.alone and running) or self.shared(worker) + worker.takes(job) > worker.memory:
                return
            job.state, job.begun = "running", True

    def finish(self, worker, draw):
        running = self.held(worker, "running")
        if running:
            draw.choice(running).state = "ended"

    def leave(self, worker):
        """Stopped or killed: its jobs are queued, with checkpoints if they have begun."""
        worker.alive = False
        for job in self.held(worker):
            job.state, job.worker = "queued", None

    def check(self):
        for worker in self.workers:
            assert len(self.held(worker)) <= worker.places
            assert self.shared(worker) <= worker.memory

    def settle(self, draw):
        """Let workers look and prepare until nothing changes, nobody coming or ending."""
        for _ in range(4 * len(self.jobs) + 8):
            changed = False
            for worker in draw.sample(self.alive(), len(self.alive())):
                before = [(job.state, job.worker, job.least_known) for job in self.jobs]
                self.look(worker)
                self.prepare(worker)
                self.admit(worker)
                changed |= before != [(job.state, job.worker, job.least_known) for job in self.jobs]
            if not changed:
                return
        raise AssertionError("jobs go round and round")


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), steps=st.integers(5, 120))
@examples(400)
def test_every_job_ends_and_none_moves_for_ever(seed, workers, steps):
    draw = random.Random(seed)
    world = World(
        [
            Worker(
                id=number,
                memory=draw.choice([50, 100, 200]),
                places=draw.randint(1, 5),
                alone=draw.random() < 0.3,
                cache=draw.choice("ab"),
                speed=draw.choice([1, 1, 3]),
                alive=number == 1 or draw.random() < 0.7,
            )
            for number in range(1, workers + 1)
        ]
    )
    for _ in range(steps):
        worker = draw.choice(world.workers)
        match draw.randint(0, 9):
            case 0 | 1 | 2:
                world.jobs.append(
                    Job(
                        id=len(world.jobs),
                        size=draw.choice([10, 40, 90, 180, 390]),
                        is_known=draw.random() < 0.5,
                    )
                )
            case 3 if worker.alive and len(world.alive()) > 1:
                world.leave(worker)
            case 4:
                worker.alive = True
            case 5 if worker.alive:
                world.finish(worker, draw)
            case _ if worker.alive:
                draw.choice([world.look, world.prepare, world.admit])(worker)
    if any(job.moves for job in world.jobs):
        event("a job moved")
    while True:
        world.settle(draw)
        for job in world.jobs:
            assert job.moves <= MOST_MOVES
            assert job.passes <= len(world.workers)
        idle = [worker for worker in world.alive() if not world.held(worker)]
        for job in world.jobs:
            if job.state == "waiting" and not job.begun:
                holder = next(worker for worker in world.workers if worker.id == job.worker)
                assert all(worker.memory < holder.memory for worker in idle), "waits though another is idle"
            if job.state == "queued":
                need = Need(job=job.id, least_nbytes=job.least_known)
                assert not any(
                    can_ever_take(need, device="cpu", memory_nbytes=worker.memory) for worker in idle
                ), "nobody takes it"
        running = [worker for worker in world.alive() if world.held(worker, "running")]
        if not running:
            break
        world.finish(draw.choice(running), draw)
    largest = max(worker.memory for worker in world.alive())
    for job in world.jobs:
        ended = job.state in ("ended", "failed")
        assert ended or (job.state == "queued" and job.least_known > largest), job
    if any(job.passes for job in world.jobs):
        event("a job was too large somewhere")
