"""Which address comes next: pure arithmetic on ranges, without files and clocks.

Owns: ranges and sets of ranges as host-local configures them, their defaults, their errors, and the round-robin choice.
Refuses: I/O. Addresses are integers here, so that a /64 costs no more than a /24: a choice looks only at the taken
addresses in its way.

Source: host-local of the CNI plugins; the error texts are its own, because people search for them.
"""

import ipaddress
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from itertools import pairwise

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from nodeplug import InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Interface = IPv4Interface | IPv6Interface


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses from `start` to `end`, both included, of one network; `gateway` is never allocated."""

    network: Network
    start: int
    end: int
    gateway: int

    def __str__(self) -> str:
        return f"{self.address(self.start)}-{self.address(self.end)}"

    def address(self, number: int) -> Address:
        """Turn a number of this range's family into an address."""
        return IPv4Address(number) if self.network.version == 4 else IPv6Address(number)

    def __contains__(self, address: object) -> bool:
        return (
            isinstance(address, IPv4Address | IPv6Address)
            and address.version == self.network.version
            and self.start <= int(address) <= self.end
        )

    def without(self, left_out: Network) -> tuple["Range", ...]:
        """Return what is left of it beside a network: before it, and after it."""
        if left_out.version != self.network.version:
            return (self,)
        before = replace(self, end=min(self.end, int(left_out.network_address) - 1))
        after = replace(self, start=max(self.start, int(left_out.broadcast_address) + 1))
        return tuple(one for one in (before, after) if one.start <= one.end)


@dataclass(frozen=True, slots=True)
class RangeSet:
    """Ranges of one family from which an attachment gets one address."""

    ranges: tuple[Range, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.ranges))

    def __contains__(self, address: object) -> bool:
        return any(address in member for member in self.ranges)

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.ranges[0].network.version

    def without(self, left_out: Sequence[Network]) -> "RangeSet":
        """Return the set without some networks; it has no range if that is all of it."""
        ranges = self.ranges
        for network in left_out:
            ranges = tuple(piece for member in ranges for piece in member.without(network))
        return RangeSet(ranges)

    def range_of(self, address: Address) -> Range:
        """Return the range that holds an address of this set."""
        return next(member for member in self.ranges if address in member)

    def reserved(self) -> frozenset[int]:
        """Return what is never allocated: gateways, network addresses and IPv4 broadcast addresses."""
        numbers = {member.gateway for member in self.ranges}
        for member in self.ranges:
            numbers.add(int(member.network.network_address))
            if self.version == 4:
                numbers.add(int(member.network.broadcast_address))
        return frozenset(numbers)

    def size(self) -> int:
        """Count the addresses that can be allocated."""
        kept = self.reserved()
        return sum(
            member.end - member.start + 1 - sum(member.start <= number <= member.end for number in kept)
            for member in self.ranges
        )

    def choose(self, taken: AbstractSet[int], last: Address | None) -> Address | None:
        """Return the first free address after `last`, round robin; None if there is none.

        Args:
            taken: addresses of this family in use.
            last: the address allocated before; one outside the set counts as none.
        """
        kept = self.reserved()
        for member, first, stop in self._walk(last):
            for number in range(first, stop + 1):
                if number not in taken and number not in kept:
                    return member.address(number)
        return None

    def _walk(self, last: Address | None) -> Sequence[tuple[Range, int, int]]:
        """Split the set into intervals, in the order of the search."""
        at = next((index for index, member in enumerate(self.ranges) if last in member), None)
        if at is None or last is None:
            return [(member, member.start, member.end) for member in self.ranges]
        current = self.ranges[at]
        others = self.ranges[at + 1 :] + self.ranges[:at]
        return [
            (current, int(last) + 1, current.end),
            *((member, member.start, member.end) for member in others),
            (current, current.start, int(last)),
        ]


class RangeConf(BaseModel):
    """The keys of one range; a subnet that is missing is told from one that is empty, as in the reference."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True)

    subnet: str | None = None
    range_start: str = ""
    range_end: str = ""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class _Read:
    """One range whose texts are addresses, in whatever relation to each other."""

    subnet: Interface | None
    start: Address | None
    end: Address | None
    gateway: Address | None


def parse_address(text: str, key: str) -> Address:
    """Read an address, as Go does: without a zone.

    Raises:
        InvalidRequest: in Go's words.
    """
    try:
        return ipaddress.ip_address(text if "%" not in text else "")
    except ValueError as error:
        raise InvalidRequest(f"invalid IP address: {text}", details=f"in key {key!r}") from error


def parse_cidr(text: str, key: str) -> Interface:
    """Read an address with a prefix length.

    Raises:
        InvalidRequest: in Go's words.
    """
    prefix = text.partition("/")[2]
    try:
        return ipaddress.ip_interface(text if prefix.isdecimal() and "%" not in text else "")
    except ValueError as error:
        raise InvalidRequest(f"invalid CIDR address: {text}", details=f"in key {key!r}; wanted: 10.1.0.0/16") from error


def _read(conf: RangeConf) -> _Read:
    return _Read(
        None if conf.subnet is None else parse_cidr(conf.subnet, "subnet"),
        parse_address(conf.range_start, "rangeStart") if conf.range_start else None,
        parse_address(conf.range_end, "rangeEnd") if conf.range_end else None,
        parse_address(conf.gateway, "gateway") if conf.gateway else None,
    )


def parse_range(conf: RangeConf) -> Range:
    """Read one range.

    Raises:
        InvalidRequest: in the words of host-local.
    """
    return _complete(_read(conf))


def _complete(read: _Read) -> Range:
    """Check a range as the reference does, in its order, and fill in what is left out."""
    if read.subnet is None:
        raise InvalidRequest("IP <nil> not v4 nor v6", details="a range needs the key 'subnet'")
    network = _network(read.subnet)
    first, last = int(network.network_address) + 1, int(network.broadcast_address)
    if network.version == 4:
        last -= 1
    if read.gateway is not None and read.gateway.version != network.version:
        raise InvalidRequest(f"gateway {read.gateway} not in network {network}")
    start, end = read.start, read.end
    behind = start is not None and end is not None and (start.version, int(start)) > (end.version, int(end))
    if start is not None and (start not in network or behind):
        details = f"it is behind RangeEnd {end}" if behind else ""
        raise InvalidRequest(f"RangeStart {start} not in network {network}", details=details)
    if end is not None and (end not in network or (start is None and int(end) < first)):
        raise InvalidRequest(f"RangeEnd {end} not in network {network}")
    return Range(
        network,
        first if start is None else int(start),
        last if end is None else int(end),
        first if read.gateway is None else int(read.gateway),
    )


def _network(subnet: Interface) -> Network:
    network = subnet.network
    if network.prefixlen > network.max_prefixlen - 2:
        raise InvalidRequest(f"Network {subnet} too small to allocate from")
    if subnet.ip != network.network_address:
        raise InvalidRequest(
            f"Network has host bits set. For a subnet mask of length {network.prefixlen} "
            f"the network address is {network.network_address}"
        )
    return network


def parse_range_set(confs: Sequence[RangeConf]) -> RangeSet:
    """Read a list of ranges.

    Raises:
        InvalidRequest: empty, of two families, or overlapping.
    """
    return _checked_set([_read(one) for one in confs])


def _checked_set(reads: Sequence[_Read]) -> RangeSet:
    if not reads:
        raise InvalidRequest("empty range set")
    ranges = [_complete(one) for one in reads]
    if len({member.network.version for member in ranges}) > 1:
        raise InvalidRequest("mixed address families")
    if (found := _overlap(ranges)) is not None:
        raise InvalidRequest(f"subnets {ranges[found[0]]} and {ranges[found[1]]} overlap")
    return RangeSet(tuple(ranges))


def parse_range_sets(confs: Sequence[Sequence[RangeConf]]) -> tuple[RangeSet, ...]:
    """Read every range set; two sets may not share an address.

    Raises:
        InvalidRequest: naming the set.
    """
    reads = [[_read(one) for one in conf] for conf in confs]  # a text that is no address has no set in its sentence
    if not reads:
        raise InvalidRequest("no IP ranges specified")
    sets: list[RangeSet] = []
    for index, read in enumerate(reads):
        try:
            sets.append(_checked_set(read))
        except InvalidRequest as error:
            raise InvalidRequest(f"invalid range set {index}: {error.message}", details=error.details) from error
    owners = [index for index, one in enumerate(sets) for _ in one.ranges]
    if (found := _overlap([member for one in sets for member in one.ranges])) is not None:
        raise InvalidRequest(f"range set {owners[found[0]]} overlaps with {owners[found[1]]}")
    return tuple(sets)


def _overlap(ranges: Sequence[Range]) -> tuple[int, int] | None:
    """Return the indices of two ranges that share an address, or None. Sorted by address, they are neighbours."""
    order = sorted(range(len(ranges)), key=lambda place: (ranges[place].network.version, ranges[place].start))
    for one, other in pairwise(order):
        same = ranges[one].network.version == ranges[other].network.version
        if same and ranges[other].start <= ranges[one].end:
            return min(one, other), max(one, other)
    return None
