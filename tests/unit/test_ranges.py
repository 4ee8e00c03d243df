import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import InvalidRequest
from nodeplug_net.ipam import ranges as net_ranges
from nodeplug_net.ipam.ranges import Range, RangeConf, RangeSet

SMALL = {"subnet": "10.0.0.0/29"}


def parse_range(keys: dict[str, str]) -> Range:
    return net_ranges.parse_range(RangeConf.model_validate(keys))


def parse_range_set(ranges: list[dict[str, str]]) -> RangeSet:
    return net_ranges.parse_range_set([RangeConf.model_validate(keys) for keys in ranges])


def parse_range_sets(sets: list[list[dict[str, str]]]) -> tuple[RangeSet, ...]:
    return net_ranges.parse_range_sets([[RangeConf.model_validate(keys) for keys in ranges] for ranges in sets])


def texts(ranges: RangeSet, taken: set[str], last: str | None, count: int) -> list[str]:
    """Give out `count` addresses, one after the other."""
    used = {int(ipaddress.ip_address(one)) for one in taken}
    before = ipaddress.ip_address(last) if last else None
    out = []
    for _ in range(count):
        before = ranges.choose(used, before)
        if before is None:
            break
        used.add(int(before))
        out.append(str(before))
    return out


def test_a_range_without_bounds_spans_its_network_but_for_the_broadcast_address() -> None:
    assert str(parse_range({"subnet": "10.1.2.0/24"})) == "10.1.2.1-10.1.2.254"
    assert str(parse_range({"subnet": "fd00::/64"})) == "fd00::1-fd00::ffff:ffff:ffff:ffff"


def test_the_default_gateway_is_the_first_address_and_is_never_given_out() -> None:
    assert texts(parse_range_set([SMALL]), set(), None, 9) == [f"10.0.0.{n}" for n in range(2, 7)]


def test_an_explicit_gateway_is_skipped_and_the_first_address_is_free() -> None:
    given_out = texts(parse_range_set([{**SMALL, "gateway": "10.0.0.3"}]), set(), None, 9)
    assert given_out == ["10.0.0.1", "10.0.0.2", "10.0.0.4", "10.0.0.5", "10.0.0.6"]


def test_a_range_up_to_the_broadcast_address_does_not_give_it_out() -> None:
    ranges = parse_range_set([{**SMALL, "rangeStart": "10.0.0.6", "rangeEnd": "10.0.0.7"}])
    assert texts(ranges, set(), None, 9) == ["10.0.0.6"]


def test_the_search_begins_behind_the_last_address_and_wraps() -> None:
    assert texts(parse_range_set([SMALL]), set(), "10.0.0.5", 9) == [f"10.0.0.{n}" for n in (6, 2, 3, 4, 5)]


def test_a_last_address_outside_the_set_counts_as_none() -> None:
    assert texts(parse_range_set([SMALL]), set(), "192.168.0.1", 1) == ["10.0.0.2"]


def test_taken_addresses_are_skipped() -> None:
    assert texts(parse_range_set([SMALL]), {"10.0.0.2", "10.0.0.3"}, None, 1) == ["10.0.0.4"]


def test_a_full_set_has_no_next_address() -> None:
    first = int(ipaddress.ip_address("10.0.0.0"))
    assert parse_range_set([SMALL]).choose(set(range(first, first + 8)), None) is None


def test_ranges_of_a_set_follow_each_other_and_wrap() -> None:
    ranges = parse_range_set([{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/30"}, {"subnet": "10.0.2.0/30"}])
    assert texts(ranges, set(), "10.0.1.2", 9) == ["10.0.2.2", "10.0.0.2", "10.0.1.2"]


def test_a_v6_network_of_any_size_allocates_at_once() -> None:
    ranges = parse_range_set([{"subnet": "fd00::/48"}])
    taken = {f"fd00::{n:x}" for n in range(2, 3000)}
    assert texts(ranges, taken, None, 1) == ["fd00::bb8"]
    assert texts(ranges, taken, "fd00:0:0:ffff:ffff:ffff:ffff:ffff", 1) == ["fd00::bb8"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "IP <nil> not v4 nor v6"),
        ({"subnet": ""}, "invalid CIDR address: "),
        ({"subnet": "10.0.0.0/255.255.255.0"}, "invalid CIDR address: 10.0.0.0/255.255.255.0"),
        ({"subnet": "10.0.0.0"}, "invalid CIDR address"),
        ({"subnet": "10.0.0.0/31"}, "Network 10.0.0.0/31 too small to allocate from"),
        ({"subnet": "10.0.0.1/32"}, "Network 10.0.0.1/32 too small to allocate from"),
        ({"subnet": "fd00::/127"}, "Network fd00::/127 too small to allocate from"),
        (
            {"subnet": "10.0.0.5/24"},
            "Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0",
        ),
        ({"subnet": "fd00::1/64"}, "Network has host bits set. For a subnet mask of length 64"),
        ({**SMALL, "rangeStart": "10.0.1.1"}, "RangeStart 10.0.1.1 not in network 10.0.0.0/29"),
        ({**SMALL, "rangeEnd": "fd00::1"}, "RangeEnd fd00::1 not in network 10.0.0.0/29"),
        ({**SMALL, "rangeStart": "10.0.0.5", "rangeEnd": "10.0.0.4"}, "RangeStart 10.0.0.5 not in network 10.0.0.0/29"),
        ({**SMALL, "gateway": "fd00::1"}, "gateway fd00::1 not in network"),
        ({**SMALL, "rangeStart": "nonsense"}, "invalid IP address: nonsense"),
    ],
)
def test_a_wrong_range_is_refused_in_the_words_of_host_local(config: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_range(config)
    assert refusal.value.message.startswith(message)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "no IP ranges specified"),
        ([[]], "invalid range set 0: empty range set"),
        ([[SMALL], [SMALL, {"subnet": "fd00::/64"}]], "invalid range set 1: mixed address families"),
        ([[SMALL, SMALL]], "invalid range set 0: subnets 10.0.0.1-10.0.0.6 and 10.0.0.1-10.0.0.6 overlap"),
        ([[SMALL], [{"subnet": "10.0.0.0/24"}]], "range set 0 overlaps with 1"),
        (
            [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.200"}]],
            "range set 0 overlaps",
        ),
    ],
)
def test_wrong_range_sets_are_refused(configs: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_range_sets(configs)
    assert refusal.value.message.startswith(message)


def test_two_parts_of_one_network_are_two_sets() -> None:
    low, high = (
        {"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.99"},
        {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.100"},
    )
    assert len(parse_range_sets([[low], [high]])) == 2


@st.composite
def range_sets(draw: st.DrawFn) -> RangeSet:
    """Several disjoint ranges of small IPv4 or IPv6 networks."""
    version = draw(st.sampled_from([4, 6]))
    ranges = []
    for block in draw(st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True)):
        text = f"10.0.{block}.0/27" if version == 4 else f"fd00:{block:x}::/123"
        network = ipaddress.ip_network(text)
        first = int(network.network_address)
        start, end = sorted((draw(st.integers(1, 31)), draw(st.integers(1, 31))))
        ranges.append(Range(network, first + start, first + end, first + draw(st.integers(1, 31))))
    return RangeSet(tuple(ranges))


@given(range_sets())
def test_every_free_address_is_given_out_exactly_once_before_the_set_is_full(ranges: RangeSet) -> None:
    taken: set[int] = set()
    last = None
    while (address := ranges.choose(taken, last)) is not None:
        assert address in ranges
        assert int(address) not in taken
        assert int(address) not in ranges.reserved()
        taken.add(int(address))
        last = address
    assert len(taken) == ranges.size()


@given(range_sets(), st.data())
def test_a_released_address_is_the_last_to_come_again(ranges: RangeSet, data: st.DataObject) -> None:
    free = ranges.size()
    if free < 2:
        return
    last = None
    order: list[int] = []
    for _ in range(data.draw(st.integers(1, free - 1))):
        last = ranges.choose(set(order), last)
        assert last is not None
        order.append(int(last))
    following = ranges.choose(set(order[:-1]), last)
    assert following is not None
    assert int(following) != order[-1]


@pytest.mark.parametrize(
    ("left_out", "left"),
    [
        ("10.0.0.0/30", "10.0.0.4-10.0.0.6"),
        ("10.0.0.3/32", "10.0.0.1-10.0.0.2,10.0.0.4-10.0.0.6"),
        ("10.0.0.6/32", "10.0.0.1-10.0.0.5"),
        ("10.0.0.4/30", "10.0.0.1-10.0.0.3"),
        ("10.0.0.0/24", ""),
        ("10.0.1.0/24", "10.0.0.1-10.0.0.6"),
        ("9.0.0.0/8", "10.0.0.1-10.0.0.6"),
        ("fd00::/64", "10.0.0.1-10.0.0.6"),
    ],
)
def test_what_is_excluded_cuts_ranges(left_out: str, left: str) -> None:
    assert str(parse_range_set([SMALL]).without([ipaddress.ip_network(left_out)])) == left


def test_the_round_goes_on_behind_what_is_excluded() -> None:
    ranges = parse_range_set([SMALL]).without([ipaddress.ip_network("10.0.0.4/31")])
    assert texts(ranges, set(), None, 10) == ["10.0.0.2", "10.0.0.3", "10.0.0.6"]
    assert texts(ranges, set(), "10.0.0.3", 1) == ["10.0.0.6"]
    assert texts(ranges, set(), "10.0.0.5", 1) == ["10.0.0.2"]
    assert ranges.size() == 3


def test_a_large_part_of_a_network_is_excluded_as_fast_as_one_address() -> None:
    ranges = parse_range_set([{"subnet": "fd00::/64"}]).without([ipaddress.ip_network("fd00::/65")])
    assert texts(ranges, set(), None, 1) == ["fd00::8000:0:0:0"]
