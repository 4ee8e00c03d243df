"""Which address comes next: pure arithmetic on ranges, without files and clocks.

Owns: ranges and sets of ranges as host-local configures them, their defaults, their errors, and the round-robin choice.
Refuses: I/O. Addresses are integers here, so that a /64 costs no more than a /24: a choice looks only at the taken
addresses in its way.

Source: host-local of the CNI plugins; the error texts are its own, because people search for them.
"""

import ipaddress
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from nodeplug import InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


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
    """The keys of one range."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True)

    subnet: str = ""
    range_start: str = ""
    range_end: str = ""
    gateway: str = ""


def parse_range(conf: RangeConf) -> Range:
    """Read one range.

    Raises:
        InvalidRequest: in the words of host-local.
    """
    network = _parse_subnet(conf.subnet)
    start, end = int(network.network_address) + 1, int(network.broadcast_address)
    if network.version == 4:
        end -= 1
    gateway = _parse_member(conf.gateway, "gateway", network, start, inside=False)
    first = _parse_member(conf.range_start, "RangeStart", network, start)
    last = _parse_member(conf.range_end, "RangeEnd", network, end)
    if first > last:
        kind = IPv4Address if network.version == 4 else IPv6Address
        raise InvalidRequest(f"RangeStart {kind(first)} is behind RangeEnd {kind(last)} in network {network}")
    return Range(network, first, last, gateway)


def _parse_subnet(value: str) -> Network:
    try:
        interface = ipaddress.ip_interface(value if "/" in value else "")
    except ValueError as error:
        raise InvalidRequest(f"invalid CIDR address: {value!r} in key 'subnet' (wanted: 10.1.0.0/16)") from error
    network = interface.network
    if network.prefixlen > network.max_prefixlen - 2:
        raise InvalidRequest(f"Network {network} too small to allocate from")
    if interface.ip != network.network_address:
        raise InvalidRequest(
            f"Network has host bits set. For a subnet mask of length {network.prefixlen} "
            f"the network address is {network.network_address}"
        )
    return network


def _parse_member(value: str, label: str, network: Network, default: int, *, inside: bool = True) -> int:
    if not value:
        return default
    try:
        address = ipaddress.ip_address(value)
    except ValueError as error:
        raise InvalidRequest(f"invalid IP address {value!r} in key {label!r}") from error
    if address.version != network.version or (inside and address not in network):
        raise InvalidRequest(f"{label} {address} not in network {network}")
    return int(address)


def parse_range_set(confs: Sequence[RangeConf]) -> RangeSet:
    """Read a list of ranges.

    Raises:
        InvalidRequest: empty, of two families, or overlapping.
    """
    if not confs:
        raise InvalidRequest("empty range set")
    ranges = [parse_range(one) for one in confs]
    if len({member.network.version for member in ranges}) > 1:
        raise InvalidRequest("mixed address families")
    for index, member in enumerate(ranges):
        for other in ranges[index + 1 :]:
            if _overlap(member, other):
                raise InvalidRequest(f"subnets {member} and {other} overlap")
    return RangeSet(tuple(ranges))


def parse_range_sets(confs: Sequence[Sequence[RangeConf]]) -> tuple[RangeSet, ...]:
    """Read every range set; two sets may not share an address.

    Raises:
        InvalidRequest: naming the set.
    """
    sets: list[RangeSet] = []
    for index, conf in enumerate(confs):
        try:
            sets.append(parse_range_set(conf))
        except InvalidRequest as error:
            raise InvalidRequest(f"invalid range set {index}: {error.message}") from error
    for index, one in enumerate(sets):
        for other_index, other in enumerate(sets[:index]):
            if any(_overlap(left, right) for left in one.ranges for right in other.ranges):
                raise InvalidRequest(f"range set {index} overlaps with {other_index}")
    if not sets:
        raise InvalidRequest("no IP ranges specified")
    return tuple(sets)


def _overlap(one: Range, other: Range) -> bool:
    return one.network.version == other.network.version and one.start <= other.end and other.start <= one.end
