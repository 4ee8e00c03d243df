"""Which rules table `filter` is to have for containers: the reference's, by their chains, comments and order.

Owns: the rules of an attachment, those that all share, and what of them is missing among the rules that exist.
Refuses: messages and sockets.

The order in FORWARD is isolation first, then what is accepted: an address that is accepted would otherwise be reached
from every bridge. In CNI-FORWARD the administrator's chain comes first.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from nodeplug_net.firewall.config import FORWARD, OWN, STAGE_1, STAGE_2, Wanted
from nodeplug_net.firewall.messages import Rule, accept, append, insert, insert_after

CHAINS: Final = (FORWARD, OWN, STAGE_1, STAGE_2)
ISOLATION: Final = "CNI firewall plugin rules (ingressPolicy: same-bridge|isolated)"
_OF_POLICY: Final = "CNI firewall plugin rules (ingressPolicy: {})"
Present = Mapping[str, Sequence[Rule]]
"""The rules of one version of IP that exist, by chain."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the kernel is to have for an attachment.

    Attributes:
        label: of the attachment.
        wanted: what it asks for.
    """

    label: str
    wanted: Wanted

    def rules(self, version: int) -> list[Rule]:
        """Return those that are its own."""
        addresses = (one for one in self.wanted.addresses if one.version == version)
        return [rule for address in addresses for rule in accept(address, OWN, self.label)]


def jump(version: int) -> Rule:
    """Return the rule that leads to the accepted addresses."""
    return Rule(version, FORWARD, (("jump", OWN),), "CNI firewall plugin rules")


def _to_admin(version: int, admin: str) -> Rule:
    return Rule(version, OWN, (("jump", admin),), "CNI firewall plugin admin overrides")


def _to_isolation(version: int) -> Rule:
    return Rule(version, FORWARD, (("jump", STAGE_1),), ISOLATION)


def _of_bridge(version: int, wanted: Wanted) -> list[Rule]:
    """Return the rules of a bridge, in the order in which they are put first: the last one comes first."""
    name, comment = wanted.bridge, _OF_POLICY.format(wanted.policy)
    within = Rule(version, STAGE_1, (("in", name), ("out", name), ("drop", "")), comment)
    return [
        Rule(version, STAGE_1, (("in", name), ("not out", name), ("jump", STAGE_2)), comment),
        *([within] if wanted.isolated else []),
        Rule(version, STAGE_2, (("out", name), ("drop", "")), ISOLATION),
    ]


def _last(version: int) -> list[Rule]:
    return [Rule(version, chain, (("return", ""),), ISOLATION) for chain in (STAGE_1, STAGE_2)]


def bridge_of(rule: Rule) -> str:
    """Return the bridge that a rule of isolation is about; empty for one about none."""
    return next((name for kind, name in rule.parts if kind in {"in", "out"}), "")


@dataclass(frozen=True, slots=True)
class Change:
    """A rule that is missing, and the message that adds it."""

    rule: Rule
    message: Callable[[], bytearray]


def chains_of(entries: Iterable[Entry]) -> list[str]:
    """Return the chains that entries need besides FORWARD."""
    wanted = [entry.wanted for entry in entries]
    isolation = [STAGE_1, STAGE_2] if any(one.bridge for one in wanted) else []
    return [OWN, *dict.fromkeys(one.admin for one in wanted), *isolation]


def missing(version: int, entries: Sequence[Entry], present: Present) -> Iterator[Change]:
    """Compose what entries lack among the rules that exist, in the order in which it is to be added.

    A rule without a label that says the same counts: it is the reference's.
    """
    concerned = [entry for entry in entries if version in entry.wanted.versions]
    if not concerned:
        return
    yield from _base(version, [entry.wanted for entry in concerned], present)
    there = {(rule.parts, rule.comment) for rule in present[OWN]}
    for entry in concerned:
        for rule in entry.rules(version):
            if (rule.parts, rule.comment) not in there:
                yield Change(rule, partial(append, rule))


def _base(version: int, wanted: Sequence[Wanted], present: Present) -> Iterator[Change]:
    """Compose what all share; a rule with another comment counts."""
    there = {(chain, rule.parts) for chain in CHAINS for rule in present[chain]}
    own, isolation = jump(version), _to_isolation(version)
    positions = {rule.parts: number for number, rule in reversed(list(enumerate(present[FORWARD])))}
    first = next((rule for rule in present[FORWARD] if rule.parts == isolation.parts), None)
    if own.parts not in positions:
        yield Change(own, partial(insert, own) if first is None else partial(insert_after, own, first.handle))
    for admin in dict.fromkeys(one.admin for one in wanted):
        rule = _to_admin(version, admin)
        if (OWN, rule.parts) not in there:
            yield Change(rule, partial(insert, rule))
    bridges = [one for one in dict.fromkeys(replace(one, addresses=()) for one in wanted) if one.bridge]
    if not bridges:
        return
    for rule in dict.fromkeys(rule for one in bridges for rule in _of_bridge(version, one)):
        if (rule.chain, rule.parts) not in there:
            there.add((rule.chain, rule.parts))
            yield Change(rule, partial(insert, rule))
    for rule in _last(version):
        if (rule.chain, rule.parts) not in there:
            yield Change(rule, partial(append, rule))
    if first is None or positions[first.parts] > positions.get(own.parts, len(positions)):
        yield Change(isolation, partial(insert, isolation))
