from ipaddress import ip_address

import pytest

from nodeplug_net.firewall.config import FORWARD, OWN, STAGE_1, STAGE_2, Wanted
from nodeplug_net.firewall.messages import Rule, append, insert, insert_after, parse_rule
from nodeplug_net.firewall.rules import CHAINS, Entry, bridge_of, missing

LABEL = "nodeplug net c1 eth0"
ENTRY = Entry(LABEL, Wanted((ip_address("10.0.0.2"), ip_address("2001:db8::2")), bridge="br0", isolated=True))
NOTHING: dict[str, list[Rule]] = {chain: [] for chain in CHAINS}


def rules(version: int, present: dict[str, list[Rule]] = NOTHING, *entries: Entry) -> list[Rule]:
    return [change.rule for change in missing(version, entries or [ENTRY], present)]


def written(found: list[Rule]) -> dict[str, list[Rule]]:
    return {chain: [rule for rule in found if rule.chain == chain] for chain in CHAINS}


@pytest.mark.parametrize("version", [4, 6])
def test_every_rule_is_read_as_it_was_written(version: int) -> None:
    for rule in rules(version):
        for message in (append(rule), insert(rule), insert_after(rule, 7)):
            assert parse_rule(version, rule.chain, bytes(message)) == rule


def test_a_rule_about_more_than_ours_equals_none_of_ours() -> None:
    rule = ENTRY.rules(4)[1]
    message = bytes(insert(rule)).replace(b"\x00\x00\x00\x0c", b"\x00\x00\x00\x0d")
    assert parse_rule(4, OWN, message) != rule
    assert ("other", "other") in parse_rule(4, OWN, message).parts


@pytest.mark.parametrize("version", [4, 6])
def test_nothing_is_missing_among_what_was_written(version: int) -> None:
    first = written(rules(version))
    first[FORWARD].reverse()  # isolation is put before what is accepted
    assert rules(version, first) == []


def test_a_rule_with_another_label_is_not_an_attachments_own() -> None:
    present = written(rules(4))
    present[FORWARD].reverse()
    other = Entry("nodeplug net c2 eth0", ENTRY.wanted)
    assert [rule.comment for rule in rules(4, present, other)] == [other.label, other.label]


def test_isolation_behind_what_is_accepted_counts_as_missing() -> None:
    present = written(rules(4))
    assert [rule.parts for rule in rules(4, present)] == [(("jump", STAGE_1),)]


def test_an_attachment_without_addresses_of_a_version_needs_no_rules_of_it() -> None:
    entry = Entry(LABEL, Wanted((ip_address("10.0.0.2"),), bridge="br0"))
    assert rules(6, NOTHING, entry) == []


def test_two_policies_for_one_bridge_do_not_double_its_rules() -> None:
    wanted = Wanted(ENTRY.wanted.addresses, bridge="br0")
    found = rules(4, NOTHING, ENTRY, Entry("nodeplug net c2 eth0", wanted))
    about = [(rule.chain, rule.parts) for rule in found if bridge_of(rule)]
    assert len(about) == len(set(about)) == 3
    assert {chain for chain, _ in about} == {STAGE_1, STAGE_2}
