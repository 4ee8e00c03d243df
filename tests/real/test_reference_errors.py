"""Bad input to the reference plugins and to ours: the same sentence, which people search for and foreign specs compare.

The code is the reference's too, but for 999: that is what its library gives to every error without a code, where the
specification has a better one. `Bad.code` is then ours. What ours adds to a sentence is in `details`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.real.refused import (
    INTERNAL,
    NAMES_GO_TYPES,
    Bad,
    Programs,
    local,
    mistakes,
    programs_with,
    stdin_of,
    unopened,
)

from nodeplug.testing import Sandbox

SECTIONS = ("bridge", "host-local", "loopback", "macvlan", "ptp", "static", "host-device", "tap", "firewall")
V4 = {"subnet": "10.77.0.0/24"}


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[Programs]:
    with programs_with(consumer("cni"), *SECTIONS) as made:
        yield made


SKEL = {
    "no-container": Bad("loopback", {}, {"CNI_CONTAINERID": None}),
    "no-netns-no-path": Bad("bridge", {}, {"CNI_NETNS": "", "CNI_PATH": None}),
    "nothing-but-add": Bad("host-local", {}, dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"))),
    "check-without-netns": Bad("loopback", {}, {"CNI_COMMAND": "CHECK", "CNI_NETNS": None}),
    "del-without-ifname": Bad("loopback", {}, {"CNI_COMMAND": "DEL", "CNI_IFNAME": None}),
    "gc-without-path": Bad("bridge", {}, {"CNI_COMMAND": "GC", "CNI_PATH": None}),
    "status-without-path": Bad("bridge", {}, {"CNI_COMMAND": "STATUS", "CNI_PATH": None}),
    "unknown-command": Bad("loopback", {}, {"CNI_COMMAND": "add"}),
    "container-id": Bad("loopback", {}, {"CNI_CONTAINERID": "a/b"}),
    "container-id-before-missing": Bad("loopback", {}, {"CNI_CONTAINERID": "-a", "CNI_PATH": None}),
    "ifname-long": Bad("loopback", {}, {"CNI_IFNAME": "sixteencharacter"}),
    "ifname-dots": Bad("loopback", {}, {"CNI_IFNAME": ".."}),
    "ifname-slash": Bad("loopback", {}, {"CNI_IFNAME": "a/b"}),
    "ifname-colon": Bad("loopback", {}, {"CNI_IFNAME": "a:b"}),
    "ifname-space": Bad("loopback", {}, {"CNI_IFNAME": "a b"}),
    "no-name": Bad("loopback", {"name": ""}),
    "bad-name": Bad("loopback", {"name": "a b"}),
    "not-json": Bad("loopback", b"{"),
    "empty-stdin": Bad("loopback", b""),
    "not-an-object": Bad(
        "loopback", b"[]", says="error unmarshall network config: it is not an object", why=NAMES_GO_TYPES
    ),
    "name-is-a-number": Bad(
        "loopback",
        b'{"name":1}',
        says="error unmarshall network config: name must be a string, found int",
        why=NAMES_GO_TYPES,
    ),
    "version-is-a-number": Bad(
        "loopback",
        {"cniVersion": 1},
        says="error unmarshall network config: cniVersion must be a string, found int",
        why=NAMES_GO_TYPES,
    ),
    "version-unknown": Bad("loopback", {"cniVersion": "1.2.0"}),
    "version-is-no-version": Bad("loopback", {"cniVersion": "one"}),
    "version-unknown-check": Bad("loopback", {"cniVersion": "1.2.0"}, {"CNI_COMMAND": "CHECK"}),
    "check-before-0.4": Bad("loopback", {"cniVersion": "0.3.1"}, {"CNI_COMMAND": "CHECK"}),
    "check-without-version": Bad("loopback", {"cniVersion": ""}, {"CNI_COMMAND": "CHECK"}),
    "gc-before-1.1": Bad("loopback", {"cniVersion": "1.0.0"}, {"CNI_COMMAND": "GC"}),
    "status-before-1.1": Bad("loopback", {"cniVersion": "1.0.0"}, {"CNI_COMMAND": "STATUS"}),
    "check-without-result": Bad(
        "bridge",
        {},
        {"CNI_COMMAND": "CHECK"},
        says="Required prevResult missing",
        why="the reference's bridge fails earlier, since it always calls IPAM",
    ),
    "bad-result": Bad(
        "loopback",
        {"prevResult": {"cniVersion": "0.2.0"}},
        code=1,
        says='could not parse prevResult: result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.2.0"',
        why="the reference's loopback puts words of its own before those of the library",
    ),
    "no-such-netns": unopened("loopback", {}),
    "bridge-no-such-netns": unopened("bridge", {"bridge": "br9"}),
    "netns-is-a-file": unopened("bridge", {"bridge": "br9"}, netns="/etc/passwd"),
    "netns-of-another-kind": unopened("bridge", {"bridge": "br9"}, netns="/proc/self/ns/uts"),
    "bridge-check-no-such-netns": unopened("bridge", {"prevResult": {"cniVersion": "1.1.0"}}, "CHECK"),
    "del-own-netns": Bad("loopback", {}, {"CNI_COMMAND": "DEL", "CNI_NETNS": "/proc/self/ns/net"}),
}
FULL = local({"subnet": "10.77.0.0/29", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.2"})
LAYER_3 = {"bridge": "br1", "ipam": {"type": "host-local", **V4}}
BRIDGE = {
    "hairpin-and-promisc": Bad("bridge", {"hairpinMode": True, "promiscMode": True}),
    "ipam-and-no-interface": Bad("bridge", {**LAYER_3, "disableContainerInterface": True}),
    "vlan-negative": Bad("bridge", {"vlan": -1}),
    "vlan-big": Bad("bridge", {"vlan": 4095}),
    "trunk-min": Bad("bridge", {"vlanTrunk": [{"minID": 0, "maxID": 3}]}),
    "trunk-max": Bad("bridge", {"vlanTrunk": [{"minID": 1, "maxID": 4095}]}),
    "trunk-order": Bad("bridge", {"vlanTrunk": [{"minID": 5, "maxID": 3}]}),
    "trunk-no-max": Bad("bridge", {"vlanTrunk": [{"minID": 5}]}),
    "trunk-no-min": Bad("bridge", {"vlanTrunk": [{"maxID": 5}]}),
    "trunk-id": Bad("bridge", {"vlanTrunk": [{"id": 0}]}),
    "args-invalid-pair": Bad("bridge", {}, {"CNI_ARGS": "none"}, code=4),
    "args-unknown": Bad("bridge", {}, {"CNI_ARGS": "A=1"}, code=4),
    "args-mac-bad": Bad("bridge", {"bridge": "br1"}, {"CNI_ARGS": "MAC=00:11:22:33:44"}, code=4),
    "mac-bad": Bad("bridge", {"bridge": "br1", "args": {"cni": {"mac": "xx"}}}),
    "runtime-mac-bad": Bad("bridge", {"bridge": "br1", "runtimeConfig": {"mac": "x"}}),
    "name-too-long": Bad(
        "bridge",
        {"bridge": "sixteencharacter"},
        says="key 'bridge': must be an interface name of at most 15 characters, found 'sixteencharacter'",
        why="the reference asks the kernel",
    ),
    "not-a-bridge": Bad("bridge", {"bridge": "lo"}),
    "mtu-small": Bad("bridge", {"bridge": "br1", "mtu": 10}, code=INTERNAL),
    "mtu-text": Bad(
        "bridge", {"mtu": "x"}, says="key 'mtu': input should be a valid integer, found 'x'", why=NAMES_GO_TYPES
    ),
    "interface-exists": Bad("bridge", {"bridge": "br1"}, {"CNI_IFNAME": "lo"}),
    "ipam-missing": Bad("bridge", {"bridge": "br1", "ipam": {"type": "nope"}}, code=INTERNAL),
    "ipam-full": Bad(
        "bridge",
        {"bridge": "br1", **FULL},
        {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth1"},
        code=11,
        before=({},),
    ),
    "ipam-bad": Bad("bridge", {"bridge": "br1", "ipam": {"type": "host-local", "subnet": "x"}}),
    "gateway-conflict": Bad("bridge", {**LAYER_3, "bridge": "foreign0", "isGateway": True}),
    "masquerading-unknown": Bad("bridge", {**LAYER_3, "ipMasq": True, "ipMasqBackend": "ebtables"}),
    "old-result": Bad("bridge", {"bridge": "br1", "cniVersion": "0.2.0"}, code=999),
    "check-nothing": Bad(
        "bridge",
        {"bridge": "foreign0", "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24"}]}},
        {"CNI_COMMAND": "CHECK"},
        code=INTERNAL,
        says="attachment eth0 of container c0 differs from its result: interface eth0 does not exist in FOLDER/pod; "
        "DEL and ADD it",
        why="CHECK names every difference, the reference the first one",
    ),
}


PTP = {
    "no-ipam": Bad("ptp", {}),
    "no-ipam-status": Bad("ptp", {}, {"CNI_COMMAND": "STATUS"}),
    "no-ipam-check": Bad("ptp", {"prevResult": {"cniVersion": "1.1.0"}}, {"CNI_COMMAND": "CHECK"}),
    "no-such-netns": unopened("ptp", local(V4)),
    "interface-exists": Bad("ptp", local(V4), {"CNI_IFNAME": "lo"}),
    "ipam-missing": Bad("ptp", {"ipam": {"type": "nope"}}, code=INTERNAL),
    "ipam-bad": Bad("ptp", local({"subnet": "x"})),
    "ipam-full": Bad("ptp", FULL, {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth1"}, code=11, before=({},)),
    "ipam-empty": Bad("ptp", {"ipam": {"type": "static"}}),
    "mtu-small": Bad("ptp", local(V4, mtu=10), code=INTERNAL),
    "backend": Bad("ptp", local(V4, ipMasq=True, ipMasqBackend="x"), code=7),
    "args-unknown": Bad("ptp", local(V4), {"CNI_ARGS": "A=1"}, code=4),
    "no-gateway": Bad(
        "ptp",
        {"ipam": {"type": "static", "addresses": [{"address": "10.77.0.5/24"}]}},
        says="address 10.77.0.5/24 has no gateway of its family",
        why="the reference shows a Go structure, and leaves the link",
    ),
    "check-nothing": Bad(
        "ptp",
        local(V4, prevResult={"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24"}]}),
        {"CNI_COMMAND": "CHECK"},
        code=INTERNAL,
        says="attachment eth0 of container c0 differs from its result: interface eth0 does not exist in FOLDER/pod; "
        "DEL and ADD it",
        why="CHECK names every difference, the reference the first one, and asks IPAM before",
    ),
}
MACVLAN = {
    "no-master": Bad("macvlan", {}),
    "master-missing": Bad("macvlan", {"master": "nope"}),
    "mtu-big": Bad("macvlan", {"master": "foreign0", "mtu": 9000}),
    "mtu-negative": Bad("macvlan", {"master": "foreign0", "mtu": -1}),
    "mode": Bad("macvlan", {"master": "foreign0", "mode": "x"}),
    "mode-case": Bad("macvlan", {"master": "foreign0", "mode": "Bridge"}),
    "mac": Bad("macvlan", {"master": "foreign0", "mac": "x"}),
    "runtime-mac": Bad("macvlan", {"master": "foreign0", "runtimeConfig": {"mac": "00:11"}}),
    "args-mac": Bad("macvlan", {"master": "foreign0"}, {"CNI_ARGS": "MAC=x"}),
    "args-unknown": Bad("macvlan", {"master": "foreign0"}, {"CNI_ARGS": "A=1"}, code=4),
    "interface-exists": Bad("macvlan", {"master": "foreign0"}, {"CNI_IFNAME": "lo"}),
    "on-loopback": Bad("macvlan", {"master": "lo"}, code=INTERNAL),
    "ipam-missing": Bad("macvlan", {"master": "foreign0", "ipam": {"type": "nope"}}, code=INTERNAL),
    "ipam-bad": Bad("macvlan", local({"subnet": "x"}, master="foreign0")),
    "ipam-empty": Bad("macvlan", {"master": "foreign0", "ipam": {"type": "static"}}),
    "no-such-netns": unopened("macvlan", {"master": "foreign0"}),
}
DEVICE = {"device": "foreign0"}
HOST_DEVICE = {
    "nothing-named": Bad("host-device", {}),
    "device-missing": Bad("host-device", {"device": "nope"}),
    "mac": Bad("host-device", {"hwaddr": "x"}),
    "mac-short": Bad("host-device", {"hwaddr": "00:11"}),
    "mac-missing": Bad("host-device", {"hwaddr": "02:99:99:99:99:99"}),
    "path-relative": Bad("host-device", {"kernelpath": "devices/x"}),
    "path-elsewhere": Bad("host-device", {"kernelpath": "/tmp/x"}),
    "path-missing": Bad("host-device", {"kernelpath": "/sys/devices/nope"}),
    "path-without-interfaces": Bad("host-device", {"kernelpath": "/sys/devices/system/../system"}),
    "function-missing": Bad("host-device", {"pciBusID": "0000:ff:ff.7"}),
    "function-with-a-slash": Bad("host-device", {"pciBusID": "/../x"}),
    "device-id-missing": Bad("host-device", {"runtimeConfig": {"deviceID": "nope"}, **DEVICE}),
    "a-bridge": Bad("host-device", DEVICE, code=INTERNAL),
    "lo": Bad("host-device", {"device": "lo"}, code=INTERNAL),
    "device-a-number": Bad(
        "host-device",
        {"device": 5},
        says="failed to load netconf: key 'device': input should be a valid string, found 5",
        why=NAMES_GO_TYPES,
    ),
    "device-missing-ipam-bad": Bad("host-device", local({"subnet": "x"}, device="nope")),
    "driven-by-programs-ipam-empty": Bad("host-device", {"DPDKMode": True, "ipam": {"type": "static"}, **DEVICE}),
    "driven-by-programs-ipam-bad": Bad("host-device", local({"subnet": "x"}, **DEVICE, DPDKMode=True)),
    "check-without-result": Bad("host-device", DEVICE, {"CNI_COMMAND": "CHECK"}),
    "check-nothing-named": Bad("host-device", {"prevResult": {"cniVersion": "1.1.0"}}, {"CNI_COMMAND": "CHECK"}),
    "no-such-netns": unopened("host-device", DEVICE),
}
ANOTHER_PROGRAM = "the reference executes ip(8), and shows what it prints"
WITH_IP = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
TAP = {
    "mac": Bad("tap", {"mac": "x", "owner": 1, "group": 1}),
    "mac-by-ip": Bad(
        "tap",
        {"mac": "x"},
        WITH_IP,
        says="invalid args x for MAC addr: address x: invalid MAC address",
        why=f"the words are those of the other way; {ANOTHER_PROGRAM}",
    ),
    "mtu": Bad(
        "tap",
        {"mtu": 70000},
        WITH_IP,
        code=INTERNAL,
        says="failed to create tap: invalid argument",
        why=ANOTHER_PROGRAM,
    ),
    "bridge-missing": Bad("tap", {"bridge": "nope"}, WITH_IP),
    "bridge-is-none": Bad("tap", {"bridge": "lo"}, WITH_IP, code=INTERNAL),
    "label": Bad(
        "tap",
        {"selinuxContext": "x:y:z"},
        code=INTERNAL,
        says="failed set socket label: write /proc/thread-self/attr/exec: invalid argument",
        why="the reference's library shows another path",
    ),
    "args-unknown": Bad("tap", {}, {"CNI_ARGS": "A=1"}, code=4),
    "ipam-missing": Bad("tap", {"ipam": {"type": "nope"}}, WITH_IP, code=INTERNAL),
    "ipam-bad": Bad("tap", local({"subnet": "x"}), WITH_IP),
    "ipam-empty": Bad("tap", {"ipam": {"type": "static"}}, WITH_IP),
    "no-such-netns": unopened("tap", {}),
}
LINKS = [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}]


def after(*interfaces: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """A network whose earlier plugin made some interfaces."""
    ips = [{"address": "10.77.0.5/24"}]
    return {"prevResult": {"cniVersion": "1.1.0", "interfaces": list(interfaces), "ips": ips}, **keys}


CHECKED = {"CNI_COMMAND": "CHECK", **WITH_IP}
FIREWALL = {
    "no-result": Bad("firewall", {}, WITH_IP),
    "check-without-result": Bad(
        "firewall",
        {},
        CHECKED,
        says="Required prevResult missing",
        why="these are the words of every other plugin; the daemon wants a result before it asks one",
    ),
    "policy": Bad("firewall", after(*LINKS, ingressPolicy="closed"), WITH_IP),
    "policy-in-capitals": Bad("firewall", after(*LINKS, ingressPolicy="Open"), WITH_IP),
    "same-bridge-without-interfaces": Bad("firewall", after(ingressPolicy="same-bridge"), WITH_IP),
    "isolated-without-interfaces": Bad("firewall", after(ingressPolicy="isolated"), WITH_IP),
    "bridge-without-a-name": Bad("firewall", after({"name": ""}, ingressPolicy="isolated"), WITH_IP),
    "result-of-an-old-version": Bad(
        "firewall",
        {"prevResult": {"cniVersion": "0.2.0"}},
        WITH_IP,
        code=1,
        says='could not parse prevResult: result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.2.0"',
        why="the reference says twice what it could not do",
    ),
    "result-a-list": Bad(
        "firewall",
        {"prevResult": []},
        WITH_IP,
        code=6,
        says="could not parse prevResult: a CNI result is an object, found a list",
        why=NAMES_GO_TYPES,
    ),
    "backend-a-number": Bad(
        "firewall",
        after(*LINKS, backend=5),
        WITH_IP,
        says="failed to load netconf: key 'backend': input should be a valid string, found 5",
        why=NAMES_GO_TYPES,
    ),
    "admin-chain": Bad(
        "firewall",
        after(*LINKS, iptablesAdminChainName="a b"),
        WITH_IP,
        says="key 'iptablesAdminChainName' is the name of a chain of your own, at most 28 characters, found 'a b'",
        why="the reference shows what iptables(8) prints, and leaves its own chain behind",
    ),
    "admin-chain-is-its-own": Bad(
        "firewall",
        after(*LINKS, iptablesAdminChainName="CNI-FORWARD"),
        WITH_IP,
        says="key 'iptablesAdminChainName' is the name of a chain of your own, at most 28 characters, found "
        "'CNI-FORWARD'",
        why="the reference shows what iptables(8) prints, and leaves its own chain behind",
    ),
    "no-such-netns": unopened("firewall", after(*LINKS)),
}
TABLES = {
    "firewall": FIREWALL,
    "tap": TAP,
    "host-device": HOST_DEVICE,
    "skel": SKEL,
    "bridge": BRIDGE,
    "ptp": PTP,
    "macvlan": MACVLAN,
}


@pytest.mark.parametrize(
    "bad",
    [pytest.param(bad, id=f"{table}-{name}") for table, cases in TABLES.items() for name, bad in cases.items()],
)
def test_bad_input_is_refused_in_the_words_of_the_reference(programs: Programs, bad: Bad) -> None:
    assert mistakes(programs, bad) == []


@pytest.mark.parametrize("text", ["none", "IgnoreUnknown=1;", "A=1", "A=B=C;;"])
@pytest.mark.parametrize("whose", ["reference", "ours"])
def test_loopback_reads_no_arguments(programs: Programs, whose: str, text: str) -> None:
    done = programs.call("loopback", whose, {"CNI_ARGS": text})
    assert done.returncode == 0, done.stdout


def test_a_bridge_and_its_ipam_share_the_arguments_without_a_word_about_unknown_ones(programs: Programs) -> None:
    env = {"CNI_ARGS": "MAC=02:00:00:00:00:05;IP=10.77.0.5"}
    theirs, ours = (programs.call("bridge", whose, env, LAYER_3) for whose in ("reference", "ours"))
    assert b'unknown args [\\"IP=10.77.0.5\\"]' in theirs.stdout  # so nobody can give it both without IgnoreUnknown
    assert (b"02:00:00:00:00:05" in ours.stdout, b"10.77.0.5/24" in ours.stdout) == (True, True)


def test_a_result_that_an_old_version_cannot_carry_leaves_no_interface(programs: Programs) -> None:
    config = stdin_of({"cniVersion": "0.2.0", "bridge": "br1"}, programs.folder)
    with Sandbox(programs.folder / "old") as pod:
        before = set(programs.host.links())  # the kernel may not yet have removed those of an earlier pod
        env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c0", "CNI_NETNS": str(pod.path), "CNI_IFNAME": "eth0"}
        program = programs.bins["ours"] / "nodeplug-bridge"
        done = programs.run(program, {**env, "CNI_PATH": str(programs.bins["ours"])}, config)
        assert b"cannot convert" in done.stdout
        assert "eth0" not in pod.links()
        assert [name for name in {*programs.host.links()} - before if name.startswith("veth")] == []
