"""What is known of a step's workspaces, and what is charged: with a dictionary in the catalog's place."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.policies.in_parts import find_splits
from tensile_db.scheduler.rewriting import captured_ops
from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.turnstile import Turnstile
from tensile_db.worker.workspaces import known
from tensile_db.worker.workspaces.known import Workspaces
from tensile_db.worker.workspaces.meter import WorkspaceMeter
from tests.late.runs import GIB, open_late
from tests.late.step import late_step
from tests.played.fake_device import FakeDevice
from tests.steps import small_step as s
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.usefixtures("little_effort")


class Catalog:
    """Keeps figures by hardware and digest, as its transactions do."""

    def __init__(self):
        self.kept = {}
        self.transactions = 0

    def read(self, conn, hardware, digests):
        return {digest: self.kept[hardware, digest] for digest in digests if (hardware, digest) in self.kept}

    def write(self, conn, *, hardware, rows):
        self.transactions += 1
        self.kept |= {(hardware, row.digest): row.workspace_nbytes for row in rows}

    def transact(self, work):
        return work(None)


class Kept:
    """A device, a turnstile, and what the catalog of both has."""

    def __init__(self, monkeypatch):
        self.runtime, self.device = open_late("kernels first")
        self.turnstile = Turnstile(memory_nbytes=GIB)
        self.catalog = Catalog()
        self.workspaces = Workspaces(device=self.device, turnstile=self.turnstile, hardware="here")
        monkeypatch.setattr(known, "workspaces", self.catalog)
        monkeypatch.setattr(
            known,
            "WorkspaceMeter",
            lambda step, on, **named: WorkspaceMeter(late_step(step, self.runtime), on, **named),
        )

    def forget(self):
        """Begin anew, as another worker does after somebody has deleted the rows."""
        self.catalog.kept.clear()
        self.catalog.transactions = 0
        self.workspaces = replace(self.workspaces)

    def measure(self, step, *, limit_nbytes=GIB, check=lambda: None):
        return self.workspaces.measure(step, self.catalog.transact, check, limit_nbytes=limit_nbytes)

    def measure_parts(self, step, splits):
        return self.workspaces.measure_parts(
            step, splits, self.catalog.transact, lambda: None, limit_nbytes=GIB
        )


@pytest.fixture
def kept(monkeypatch):
    made = Kept(monkeypatch)
    yield made
    assert (made.device.memory.used_nbytes, made.runtime.held_nbytes) == (0, 0)
    made.device.close()


def charged(step):
    return {op.id: op.workspace_nbytes for op in step.graph.ops if op.workspace_nbytes}


def of_products(call, results_nbytes):
    return 1000 + results_nbytes if "mm" in str(call.function) else 0


ALL = {s.MM1: 1256, s.MM2: 1048, s.GW2: 1192, s.GD: 1256, s.GW1: 1512}


def test_a_device_that_sees_no_workspaces_is_asked_for_none(kept):
    device = FakeDevice()
    step = s.small_step()
    workspaces = replace(kept.workspaces, device=device)
    assert workspaces.measure(step, None, None, limit_nbytes=0) is step
    assert workspaces.lookup(step, None) is step
    assert workspaces.measure_parts(step, ("any",), None, None, limit_nbytes=0) is step


def test_what_is_measured_is_charged_and_kept_for_the_next_one(kept):
    kept.runtime.workspace = of_products
    step = s.small_step()
    assert kept.workspaces.lookup(step, kept.catalog.transact) is step
    found = kept.measure(step)
    assert charged(found) == ALL
    assert found.graph.digest != step.graph.digest
    # Of ops without any it is known, too.
    assert len(kept.catalog.kept) == len(step.graph.ops) - 2
    kept.runtime.workspace = lambda call, results_nbytes: 1 / 0
    assert charged(kept.measure(step)) == charged(kept.workspaces.lookup(step, kept.catalog.transact)) == ALL


def test_jobs_that_begin_together_measure_an_op_once(kept, monkeypatch):
    kept.runtime.workspace = of_products
    step = s.small_step()
    quiet = kept.turnstile.quiet

    @contextmanager
    def after_another(check):
        monkeypatch.setattr(kept.turnstile, "quiet", quiet)
        # While one waits, another one has its quiet; the catalog forgets what that one told it.
        kept.measure(step)
        kept.catalog.kept.clear()
        kept.runtime.workspace = lambda call, results_nbytes: 1 / 0
        with quiet(check) as free_nbytes:
            yield free_nbytes

    monkeypatch.setattr(kept.turnstile, "quiet", after_another)
    assert charged(kept.measure(step)) == ALL
    kept.catalog.kept.clear()
    assert charged(kept.measure(step)) == ALL
    assert len(kept.catalog.kept) == len(step.graph.ops) - 2


def test_where_kernels_hold_nothing_more_the_step_is_what_it_was(kept):
    step = s.small_step()
    assert kept.measure(step) is step


def test_quiet_lasts_a_moment_and_what_was_found_in_it_is_kept_at_once(kept, monkeypatch):
    begun = []
    quiet = kept.turnstile.quiet

    @contextmanager
    def noting(check):
        begun.append(kept.catalog.transactions)
        with quiet(check) as free_nbytes:
            yield free_nbytes

    monkeypatch.setattr(kept.turnstile, "quiet", noting)
    # In such a moment at least an op is measured.
    times = iter(range(10**6))
    monkeypatch.setattr(known, "time", SimpleNamespace(monotonic=times.__next__))
    step = s.small_step()
    kept.measure(step)
    assert begun == list(range(len(step.graph.ops) - 2))
    # As long as it was waited for: for five seconds, and the fourteen ops take one each.
    kept.forget()
    begun.clear()
    monkeypatch.setattr(known, "_LONGEST_QUIET_S", 10.0)
    monkeypatch.setattr(kept.turnstile, "quiet", lambda check: waiting(noting(check), times))
    kept.measure(step)
    assert begun == [0, 1, 2]


@contextmanager
def waiting(quiet, times):
    """Let four seconds pass before there is quiet."""
    with quiet as free_nbytes:
        for _ in range(4):
            next(times)
        yield free_nbytes


class Stop(Exception):
    pass


def test_a_job_that_is_stopped_leaves_what_it_found_and_no_quiet(kept, monkeypatch):
    monkeypatch.setattr(known, "time", SimpleNamespace(monotonic=iter(range(10**6)).__next__))
    kept.runtime.workspace = of_products

    def check():
        if len(kept.catalog.kept) == 3:
            raise Stop

    with pytest.raises(Stop):
        kept.measure(s.small_step(), check=check)
    assert len(kept.catalog.kept) == 3
    kept.turnstile.come_in(1, priority=0)
    assert charged(kept.measure(s.small_step())) == ALL


def test_an_op_without_room_is_charged_as_much_again_or_what_there_is_and_not_kept(kept):
    kept.runtime.workspace = of_products
    step = s.small_step()
    limit_nbytes = 1000
    touched = {
        op.id: sum(step.graph.tensors[t].nbytes for t in {*op.reads, *op.writes}) for op in step.graph.ops
    }
    found = kept.measure(step, limit_nbytes=limit_nbytes)
    in_parts_only = {op for op, nbytes in touched.items() if nbytes > limit_nbytes}
    assert in_parts_only
    assert not in_parts_only & charged(found).keys()
    # Another job's resident part leaves 800 bytes of a device of 2000.
    kept.forget()
    small = Turnstile(memory_nbytes=2000)
    small.come_in(1, priority=0)
    assert small.change(
        1, Share(lane=0, resident_nbytes=1200, ephemeral_nbytes=0), lambda: None, lambda: False
    )
    squeezed = replace(kept.workspaces, turnstile=small)
    found = squeezed.measure(step, kept.catalog.transact, lambda: None, limit_nbytes=1500)
    assert charged(found)[s.MM1] == min(896, 1500 - 896) == 604
    assert touched[s.MM2] <= 800
    assert charged(found)[s.MM2] == ALL[s.MM2]
    assert len(kept.catalog.kept) == sum(1 for op in step.graph.ops[1:-1] if touched[op.id] <= 800)


@pytest.mark.slow
def test_parts_that_need_more_than_their_op_make_it_need_as_much(kept):
    step, _ = capture_once(training_of("resnet", "momentum", 32))
    limit_nbytes = int(0.7 * lower_bound_peak_nbytes(step.graph))
    rewriting = find_splits(step.graph, limit_nbytes).rewriting
    made_from = captured_ops(step.graph, Rewriting(packed=rewriting.packed))
    split_ops = {made_from[op] for split in rewriting.splits for op in split.ops}
    of_whole_ops = {
        sum(step.graph.tensors[view.tensor].nbytes for view in call.outputs if view is not None)
        for call in step.calls
    }
    # Kernels for smaller results that want more.
    kept.runtime.workspace = lambda call, nbytes: 10 if nbytes in of_whole_ops else 7777
    before = kept.measure(step)
    after = kept.measure_parts(before, rewriting)
    changed = {op for op, nbytes in charged(after).items() if charged(before).get(op) != nbytes}
    assert changed
    assert changed <= split_ops
    assert {charged(after)[op] for op in changed} == {7777}
    assert kept.measure_parts(after, rewriting) is after
    assert kept.measure_parts(after, Rewriting()) is after
