"""Which of many models that come back at once are made ready to be served first."""

import threading

import pytest

from tensile_db.worker.serving.preparations import Preparations


class Jobs:
    """Threads that prepare themselves until they are told that they have."""

    def __init__(self, at_a_time):
        self.preparations = Preparations(at_a_time)
        #: By name, the request that has waited for it the longest.
        self.asked = {}
        self.begun = []
        self._done = {}
        self._threads = []
        self._changed = threading.Condition()

    def come(self, name, stops=False):
        """Let a job come; return when it has begun or waits for its turn."""
        is_there = threading.Event()

        def check():
            is_there.set()
            if stops:
                raise InterruptedError

        def run():
            try:
                with self.preparations.one_of(lambda: self.asked.get(name), check):
                    with self._changed:
                        self.begun.append(name)
                        self._changed.notify_all()
                    is_there.set()
                    assert self._done[name].wait(10)
            except InterruptedError:
                assert stops

        self._done[name] = threading.Event()
        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()
        assert is_there.wait(10)

    def ask(self, name, request):
        self.asked[name] = request
        self.preparations.look()

    def end(self, name):
        self._done[name].set()

    def wait_for(self, *begun):
        with self._changed:
            self._changed.wait_for(lambda: len(self.begun) >= len(begun), 10)
        assert self.begun == list(begun)

    def join(self):
        for done in self._done.values():
            done.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def jobs():
    jobs = Jobs(at_a_time=2)
    yield jobs
    jobs.join()


@pytest.mark.slow
def test_those_that_somebody_waits_for_go_first_the_oldest_request_before_all(jobs):
    jobs.come("first")
    jobs.wait_for("first")
    for name in ("second", "third", "fourth"):
        jobs.come(name)
    # The other place is kept for whom somebody waits for.
    jobs.ask("fourth", 8)
    jobs.wait_for("first", "fourth")
    jobs.asked["third"] = 9
    jobs.come("last")
    jobs.ask("last", 7)
    jobs.end("fourth")
    jobs.wait_for("first", "fourth", "last")
    jobs.end("last")
    jobs.wait_for("first", "fourth", "last", "third")
    for name in ("first", "third"):
        jobs.end(name)
    jobs.wait_for("first", "fourth", "last", "third", "second")


def test_what_nobody_waits_for_is_prepared_one_after_another(jobs):
    for name in ("first", "second", "third"):
        jobs.come(name)
    jobs.wait_for("first")
    jobs.end("first")
    jobs.wait_for("first", "second")
    jobs.end("second")
    jobs.wait_for("first", "second", "third")


def test_no_more_are_prepared_at_a_time_than_there_are_places_whoever_waits(jobs):
    jobs.asked = {"first": 1, "second": 2, "third": 3}
    jobs.come("first")
    jobs.wait_for("first")
    jobs.come("second")
    jobs.wait_for("first", "second")
    jobs.come("third")
    jobs.end("second")
    jobs.wait_for("first", "second", "third")


def test_one_that_is_told_to_stop_while_it_waits_is_in_nobodys_way(jobs):
    jobs.come("first")
    jobs.wait_for("first")
    jobs.come("stopped", stops=True)
    jobs.come("second")
    jobs.end("first")
    jobs.wait_for("first", "second")


@pytest.mark.slow
def test_what_is_prepared_aside_waits_until_nobody_waits_for_a_model(jobs):
    jobs.preparations.wait_until_nobody_waits()
    jobs.come("asked")
    jobs.wait_for("asked")
    jobs.ask("asked", 1)
    aside = threading.Thread(target=jobs.preparations.wait_until_nobody_waits)
    aside.start()
    aside.join(0.3)
    assert aside.is_alive()
    jobs.come("unasked")
    jobs.end("asked")
    aside.join(10)
    assert not aside.is_alive()
