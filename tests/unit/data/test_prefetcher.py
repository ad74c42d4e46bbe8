"""Batches prepared in a thread."""

import threading
from itertools import count

import pytest

from tensile_db.data.prefetcher import Prefetcher


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tensile-prefetch"]


def test_items_come_in_order_and_end():
    ahead = Prefetcher(lambda: iter(range(5)))
    assert list(ahead) == [0, 1, 2, 3, 4]
    assert list(ahead) == []
    ahead.close()


def test_an_error_reaches_the_one_who_asks_after_the_items_before_it():
    def items():
        yield 1
        raise ValueError("no more")

    ahead = Prefetcher(items)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)
    ahead.close()


def test_closing_ends_the_thread_though_it_waits_for_room():
    ahead = Prefetcher(count)
    assert next(ahead) == 0
    ahead.close()
    ahead.close()
    assert _threads() == []
    assert list(ahead) == []
