"""Limits in bits, and what the kernel is told of them."""

import pytest

from nodeplug_net.bandwidth.config import Limit
from nodeplug_net.bandwidth.rates import fair_times, queue_of, rate_of, references, same, ticks_per_microsecond
from nodeplug_net.netlink.traffic_control import Rate

LARGEST = Limit(1_000_000, (1 << 32) - 1)


@pytest.fixture(autouse=True)
def _sixty_four_nanoseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_net.bandwidth.rates.ticks_per_microsecond", lambda: 15.625)


def test_a_tick_is_what_the_kernel_says() -> None:
    assert ticks_per_microsecond() > 0


@pytest.mark.parametrize("limit", [Limit(8_000_000, 800_000), Limit(123_456_789, 1_234_567), Limit(10**12, 10**9)])
def test_a_usual_limit_is_the_references(limit: Limit) -> None:
    assert rate_of(limit, 1500) == references(limit)


def test_bits_become_bytes_and_bursts_become_time() -> None:
    assert rate_of(Limit(8_000_000, 800_000), 1500) == Rate(1_000_000, 1_562_500, 125_000)


def test_a_burst_has_room_for_one_packet() -> None:
    assert rate_of(Limit(8_000_000, 8), 1500) == Rate(1_000_000, 23_656, 26_514)


def test_a_rate_below_a_byte_is_one_byte_a_second() -> None:
    assert rate_of(Limit(7, 8_000), 60).speed == 1


def test_a_burst_that_takes_too_long_does_not_wrap() -> None:
    assert rate_of(LARGEST, 1500).buffer == (1 << 32) - 1
    assert references(LARGEST).buffer < (1 << 32) - 1


@pytest.mark.parametrize("rate", [10**5, 10**7, 10**9, 10**11])
def test_what_waits_is_bounded_whatever_the_burst(rate: int) -> None:
    bucket = rate_of(Limit(rate, (1 << 32) - 1), 1500)
    assert queue_of(bucket) == int(rate / 8 * 0.025) + 65_536
    assert queue_of(rate_of(Limit(rate, 8_000), 1500)) == rate_of(Limit(rate, 8_000), 1500).limit


@pytest.mark.parametrize(("rate", "times"), [(10**9, (5_000, 100_000)), (10**5, (181_680, 363_360))])
def test_a_slow_link_is_not_taken_for_a_full_one(rate: int, times: tuple[int, int]) -> None:
    assert fair_times(rate_of(Limit(rate, 10**6), 1500), 1500) == times


def test_the_kernel_keeps_a_burst_in_thirty_two_bits_of_nanoseconds() -> None:
    wanted = rate_of(LARGEST, 1500)
    assert same(Rate(wanted.speed, 67_108_863, wanted.limit), wanted)
    assert not same(Rate(wanted.speed, 67_108_000, wanted.limit), wanted)
