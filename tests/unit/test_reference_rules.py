"""The reference's names for what it writes, compared with what its release 1.9.1 wrote."""

from ipaddress import IPv4Interface, ip_address, ip_network

from nodeplug_net.attachment import Attachment
from nodeplug_net.reference.rules import Rule, chain_of, comment_of, instance_of, to_remove

CHAIN = "CNI-2f9aafb03deb38160e230c91"
COMMENT = 'name: "refnet" id: "c1"'
NFT_COMMENT = "7165e11869391df4-8c6ebb285a95686c, net: refnet, if: eth0, id: c2"
FIRST, SECOND = Attachment("refnet", "c1", "eth0"), Attachment("refnet", "c2", "eth0")


def jump(source: str, comment: str = COMMENT, chain: str = CHAIN) -> Rule:
    return Rule(ip_network(source), comment, chain, 4, 7)


def test_a_container_has_the_chain_that_the_reference_gave_it() -> None:
    assert chain_of(FIRST) == chain_of(Attachment("refnet", "c1", "eth1")) == CHAIN


def test_an_attachment_has_the_comment_that_the_reference_gave_it() -> None:
    assert (comment_of(SECOND), instance_of(SECOND)) == (NFT_COMMENT, NFT_COMMENT[:33])


def test_a_long_comment_is_cut_behind_what_tells_attachments_apart() -> None:
    long = Attachment("n" * 100, "c" * 64, "eth0")
    assert len(comment_of(long)) == 127
    assert comment_of(long).startswith(f"{instance_of(long)}, net: nnn")


def test_rules_say_in_whose_network_they_are() -> None:
    rules = [jump("10.77.0.2"), Rule(ip_network("10.77.0.3"), NFT_COMMENT, "", 0, 8)]
    assert [rule.is_in("refnet") for rule in rules] == [True, True]
    assert [rule.is_in("ref") for rule in rules] == [False, False]


def test_a_jump_to_another_chain_of_the_reference_is_in_no_network() -> None:
    assert not jump("10.77.0.2", "CNI portfwd requiring masquerade", "CNI-HOSTPORT-MASQ").is_in("refnet")


def test_without_other_interfaces_all_of_a_container_goes() -> None:
    rules = [jump("10.77.0.2"), jump("10.77.0.0/24"), jump("10.77.0.3", chain="CNI-other")]
    assert to_remove(rules, FIRST, list) == rules[:2]


def test_what_covers_an_address_of_another_interface_stays() -> None:
    """Releases before 0.8 jumped for the whole subnet."""
    rules = [jump("10.77.0.2"), jump("10.77.0.3"), jump("10.77.0.0/24")]
    assert to_remove(rules, FIRST, lambda: [IPv4Interface("10.77.0.3/24")]) == rules[:1]
    assert ip_address("10.77.0.3") in rules[2].source


def test_rules_for_nftables_are_told_apart_by_interface() -> None:
    rule = Rule(ip_network("10.77.0.3"), NFT_COMMENT, "", 0, 8)
    assert to_remove([rule], Attachment("refnet", "c2", "eth1"), list) == []
    assert to_remove([rule], SECOND, list) == [rule]
