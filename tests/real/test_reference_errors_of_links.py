"""Bad input to the plugins for links that a kernel may lack, the reference's and ours: as `test_reference_errors`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.link_kinds import need_kind
from tests.real.refused import INTERNAL, NAMES_GO_TYPES, Bad, Programs, local, mistakes, programs_with, unopened

SECTIONS = ("ipvlan", "vlan", "dummy", "vrf", "host-local", "static")
POOL = {"type": "host-local", "subnet": "10.77.0.0/24"}
CHECKED = {"CNI_COMMAND": "CHECK"}
ON = {"master": "foreign0", "ipam": POOL}
TAGGED = {**ON, "vlanId": 5}
OLDER = {"cniVersion": "0.2.0"}


def after(*names: str) -> dict[str, Any]:
    """A result that has interfaces."""
    return {"cniVersion": "1.1.0", "interfaces": [{"name": name, "sandbox": "/x"} for name in names]}


NAMED = {"vrfname": "blue", "prevResult": after("eth0")}


def decoded(plugin: str, config: Mapping[str, Any], says: str) -> Bad:
    return Bad(plugin, config, says=f"failed to load netconf: {says}", why=NAMES_GO_TYPES)


def unchecked(plugin: str, config: Mapping[str, Any]) -> Bad:
    """CHECK of a container that has no interface."""
    return Bad(
        plugin,
        {**config, "prevResult": {"cniVersion": "1.1.0"}},
        CHECKED,
        code=INTERNAL,
        says="attachment eth0 of container c0 differs from its result: interface eth0 does not exist in FOLDER/pod; "
        "DEL and ADD it",
        why="CHECK names every difference, the reference the first one, and asks IPAM before",
    )


def resultless(plugin: str, config: Mapping[str, Any]) -> Bad:
    return Bad(
        plugin,
        config,
        CHECKED,
        says="Required prevResult missing",
        why="the reference calls IPAM before it looks, or has other words; the daemon wants a result before it asks",
    )


IPVLAN = {
    "no-master": Bad("ipvlan", {"ipam": POOL}),
    "master-missing": Bad("ipvlan", {**ON, "master": "nope"}),
    "master-a-number": decoded("ipvlan", {**ON, "master": 5}, "key 'master': input should be a valid string, found 5"),
    "mode": Bad("ipvlan", {**ON, "mode": "l4"}),
    "mode-in-capitals": Bad("ipvlan", {**ON, "mode": "L3"}),
    "mtu-a-word": decoded("ipvlan", {**ON, "mtu": "1"}, "key 'mtu': input should be a valid integer, found '1'"),
    "chained-on-several": Bad("ipvlan", {"ipam": POOL, "prevResult": after("a", "b")}),
    "chained-on-none": Bad("ipvlan", {"ipam": POOL, "prevResult": after()}),
    "chained-on-nameless": Bad("ipvlan", {"ipam": POOL, "prevResult": after("")}),
    "inside-missing": Bad("ipvlan", {**ON, "linkInContainer": True}),
    "check-without-result": resultless("ipvlan", ON),
    "check-without-interfaces": unchecked("ipvlan", ON),
    "no-such-netns": unopened("ipvlan", ON),
}
VLAN = {
    "no-master": Bad("vlan", {"vlanId": 5, "ipam": POOL}),
    "master-missing": Bad("vlan", {**TAGGED, "master": "nope"}),
    "id-negative": Bad("vlan", {**ON, "vlanId": -1}),
    "id-big": Bad("vlan", {**ON, "vlanId": 4095}),
    "id-a-word": decoded("vlan", {**ON, "vlanId": "5"}, "key 'vlanId': input should be a valid integer, found '5'"),
    "mtu-big": Bad("vlan", {**TAGGED, "mtu": 9000}),
    "mtu-negative": Bad("vlan", {**TAGGED, "mtu": -1}),
    "inside-missing": Bad("vlan", {**TAGGED, "linkInContainer": True}),
    "check-without-result": resultless("vlan", TAGGED),
    "check-without-interfaces": unchecked("vlan", TAGGED),
    "no-such-netns": unopened("vlan", TAGGED),
}
DUMMY = {
    "without-ipam": Bad("dummy", {}),
    "check-without-result": resultless("dummy", {"ipam": POOL}),
    "check-without-interfaces": unchecked("dummy", {"ipam": POOL}),
    "no-such-netns": unopened("dummy", {"ipam": POOL}),
}
VRF = {
    "no-result": Bad("vrf", {"vrfname": "blue"}),
    "no-name": Bad("vrf", {"prevResult": after("eth0")}),
    "name-a-number": decoded("vrf", {**NAMED, "vrfname": 5}, "key 'vrfname': input should be a valid string, found 5"),
    "table-a-word": decoded("vrf", {**NAMED, "table": "5"}, "key 'table': input should be a valid integer, found '5'"),
    "table-negative": decoded(
        "vrf", {**NAMED, "table": -5}, "key 'table': input should be greater than or equal to 0, found -5"
    ),
    "name-of-another-link": Bad("vrf", {**NAMED, "vrfname": "lo"}),
    "check-without-result": resultless("vrf", {"vrfname": "blue"}),
    "check-missing": Bad("vrf", NAMED, CHECKED, code=INTERNAL),
    "result-of-an-old-version": Bad(
        "vrf",
        {"vrfname": "blue", "prevResult": OLDER},
        code=1,
        says='could not parse prevResult: result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.2.0"',
        why="the reference says twice what it could not do",
    ),
    "no-such-netns": unopened("vrf", NAMED),
}
TABLES = {"ipvlan": IPVLAN, "vlan": VLAN, "dummy": DUMMY, "vrf": VRF}


def common(plugin: str, keys: Mapping[str, Any]) -> dict[str, Bad]:
    """What the reference refuses after it has made the interface."""
    cases = {
        "interface-exists": Bad(plugin, {**keys, "ipam": POOL}, {"CNI_IFNAME": "lo"}),
        "args-unknown": Bad(plugin, {**keys, "ipam": POOL}, {"CNI_ARGS": "A=1"}, code=4),
        "ipam-missing": Bad(plugin, {**keys, "ipam": {"type": "nope"}}, code=INTERNAL),
        "ipam-bad": Bad(plugin, local({"subnet": "x"}, **keys)),
        "ipam-empty": Bad(plugin, {**keys, "ipam": {"type": "static"}}),
    }
    if plugin != "dummy":
        cases["without-ipam"] = Bad(plugin, dict(keys))
    return cases


MADE = {
    "ipvlan": common("ipvlan", {"master": "foreign0"}),
    "vlan": common("vlan", {"master": "foreign0", "vlanId": 5}),
    "dummy": common("dummy", {}),
}
"""These need a kernel that has the links."""


def cases(tables: Mapping[str, Mapping[str, Bad]]) -> list[Any]:
    return [pytest.param(bad, id=f"{table}-{name}") for table, all_ in tables.items() for name, bad in all_.items()]


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[Programs]:
    with programs_with(consumer("cni"), *SECTIONS) as made:
        yield made


@pytest.mark.parametrize("bad", cases(TABLES))
def test_bad_input_is_refused_in_the_words_of_the_reference(programs: Programs, bad: Bad) -> None:
    assert mistakes(programs, bad) == []


@pytest.mark.parametrize("bad", cases(MADE))
def test_what_is_refused_with_the_interface_there_is_told_in_the_words_of_the_reference(
    programs: Programs, bad: Bad
) -> None:
    need_kind(bad.plugin)
    assert mistakes(programs, bad) == []
