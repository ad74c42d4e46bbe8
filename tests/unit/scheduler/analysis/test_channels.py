"""Free stretches of a copy channel."""

import pytest

from tensile_db.scheduler.analysis.channels import Channel, Link, copy_ns
from tests.graphs.hand_made import device_of


def _busy(*booked: tuple[int, int]) -> Channel:
    channel = Channel()
    for start, duration in booked:
        channel.book(start, duration)
    return channel


@pytest.mark.parametrize(
    ("begin", "end", "duration", "want"),
    [
        (0, 100, 10, 0),
        (5, 100, 10, 30),
        (5, 100, 5, 5),
        (12, 100, 10, 30),
        (30, 60, 20, 30),
        (30, 60, 31, None),
        (30, 101, 31, 70),
        (65, 100, 30, 70),
        (65, 99, 30, None),
    ],
)
def test_earliest_finds_the_first_free_stretch(begin, end, duration, want):
    assert _busy((10, 20), (60, 10)).earliest(begin, end, duration) == want


@pytest.mark.parametrize(
    ("begin", "end", "duration", "want"),
    [
        (0, 100, 10, 90),
        (0, 70, 10, 50),
        (0, 65, 30, 30),
        (0, 65, 31, None),
        (0, 30, 10, 0),
        (0, 10, 11, None),
    ],
)
def test_latest_finds_the_last_free_stretch(begin, end, duration, want):
    assert _busy((10, 20), (60, 10)).latest(begin, end, duration) == want


def test_an_unbooked_stretch_is_free_again():
    channel = _busy((10, 20))
    channel.unbook(10, 20)
    assert channel.earliest(10, 30, 20) == 10


def test_a_copy_takes_its_bytes_over_the_rate_rounded_up():
    assert copy_ns(3, 2 * 10**9) == 2


def test_a_simplex_link_has_one_channel_and_jobs_share_its_rate():
    link = Link(device_of(1, duplex=False), jobs=2)
    assert link.to_host is link.to_device
    assert link.out_ns(100) == 200
