"""tap in scratch namespaces: what an attachment has, and that nothing is left of it."""

import fcntl
import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.killed_call import killed_call
from tests.programs import need

from nodeplug import CniDns, CniInterface, Exhausted, InvalidEnvironment, InvalidRequest, Netns, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.tap.config import TapConfig as Wanted
from nodeplug_net.tap.device import make_labelled_tap
from nodeplug_net.tap.plugin import Tap, TapConfig

Look = Callable[[Netns], Any]
pytestmark = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="needs /dev/net/tun")


@pytest.fixture
def tap(scratch: ScratchCni) -> Tap:
    plugin = Tap(TapConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(plugin.start)
    return plugin


def network(*subnets: str, **keys: Any) -> dict[str, Any]:
    ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.88.0.0/24",)]
    config = {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-tap"}
    return {**config, "ipam": {"type": "host-local", "ranges": ranges}, **keys}


def flat(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in network(**keys).items() if key != "ipam"}


def described(netns: Netns, name: str = "eth0") -> dict[str, Any]:
    need("ip")
    words = ["ip", "-d", "-j", "link", "show", name]
    done = run_in(netns, lambda: subprocess.run(words, capture_output=True, check=True, text=True))
    return dict(json.loads(done.stdout)[0]["linkinfo"])


@pytest.mark.parametrize(
    ("keys", "data"),
    [
        ({}, {"pi": False, "vnet_hdr": False, "multi_queue": False}),
        ({"multiQueue": True}, {"pi": False, "vnet_hdr": False, "multi_queue": True}),
        ({"owner": 5}, {"pi": False, "vnet_hdr": False, "user": "games"}),
        ({"group": 6}, {"pi": False, "vnet_hdr": False, "group": "disk"}),
        ({"owner": 5, "group": 6}, {"pi": True, "vnet_hdr": True, "user": "games", "group": "disk"}),
        ({"owner": 0, "group": 0, "multiQueue": True}, {"pi": False, "vnet_hdr": True, "multi_queue": True}),
    ],
    ids=str,
)
def test_the_kernel_has_what_is_asked(
    scratch: ScratchCni, tap: Tap, eyes: Any, keys: dict[str, Any], data: dict[str, Any]
) -> None:
    netns, config = scratch.container(), network(mtu=1400, mac="02:00:00:00:00:05", dns={"domain": "a"}, **keys)
    result = scratch.add(tap, config, "c1", netns)
    found = described(netns)
    assert (found["info_kind"], found["info_data"]["type"], found["info_data"]["persist"]) == ("tun", "tap", True)
    assert {key: found["info_data"][key] for key in data} == data
    made = eyes.link(netns)
    assert (made.mtu, made.mac, made.is_up) == (1400, "02:00:00:00:00:05", True)
    assert result.interfaces == (CniInterface("eth0", mac="02:00:00:00:00:05", sandbox=netns.path),)
    assert result.dns == CniDns(domain="a")
    scratch.check(tap, config, "c1", netns, result)
    for _ in range(2):
        scratch.delete(tap, config, "c1", netns)
        assert (eyes.find(netns), eyes.held()) == (None, [])


def test_a_program_in_the_container_reads_what_is_sent_through_it(scratch: ScratchCni, tap: Tap) -> None:
    netns = scratch.container()
    scratch.add(tap, network(), "c1", netns)

    need("ping")

    def read() -> bytes:
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(descriptor, 0x400454CA, struct.pack("=16sH22x", b"eth0", 0x1002))
            subprocess.run(["ping", "-c", "1", "-W", "1", "10.88.0.1"], capture_output=True, check=False)
            return os.read(descriptor, 2048)
        finally:
            os.close(descriptor)

    assert len(run_in(netns, read)) >= 42  # an Ethernet frame


def test_the_runtimes_address_comes_before_that_of_the_arguments(scratch: ScratchCni, tap: Tap, eyes: Any) -> None:
    places: dict[str, Any] = {"mac": "02:00:00:00:00:01"}
    scratch.add(tap, flat(**places), "c1", one := scratch.container(), args={"MAC": "02:00:00:00:00:02"})
    places["runtimeConfig"] = {"mac": "02-00-00-00-00-03"}
    scratch.add(tap, flat(**places), "c2", other := scratch.container(), args={"MAC": "02:00:00:00:00:02"})
    assert (eyes.link(one).mac, eyes.link(other).mac) == ("02:00:00:00:00:02", "02:00:00:00:00:03")


def test_a_tap_becomes_a_port_of_a_bridge_of_its_container(scratch: ScratchCni, tap: Tap, eyes: Any) -> None:
    netns, config = scratch.container(), flat(bridge="br7")
    eyes.change(netns, lambda ip: ip.link("add", ifname="br7", kind="bridge"))
    result = scratch.add(tap, config, "c1", netns)
    assert eyes.link(netns).master == eyes.link(netns, "br7").index
    scratch.check(tap, config, "c1", netns, result)
    eyes.change(netns, lambda ip: ip.link("set", index=eyes.link(netns).index, master=0))
    with pytest.raises(PluginError, match="interface eth0 is no port of bridge br7"):
        scratch.check(tap, config, "c1", netns, result)


def test_a_repeated_add_returns_the_same(scratch: ScratchCni, tap: Tap, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(tap, network(), "c1", netns)
    before = look(netns)
    assert scratch.add(tap, network(), "c1", netns) == first
    assert look(netns) == before


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"mac": "x"}, "invalid args x for MAC addr: address x: invalid MAC address"),
        ({"mtu": 70000}, "failed to create tap: invalid argument.*mtu greater than device maximum"),
        ({"mtu": -5}, "failed to create tap: invalid argument.*mtu less than device minimum"),
        ({"bridge": "nope"}, "failed to get bridge nope: Link not found"),
        ({"bridge": "lo"}, "failed to set tap eth0 as a port of bridge lo: operation not supported"),
        ({"owner": -5}, "failed to load netconf: key 'owner'"),
        ({"selinuxContext": "x:y:z"}, "failed set socket label: write /proc/thread-self/attr/exec: "),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    scratch: ScratchCni, tap: Tap, eyes: Any, look: Look, keys: dict[str, Any], said: str
) -> None:
    netns = scratch.container()
    with pytest.raises(PluginError, match=said):
        scratch.add(tap, network(**keys), "c1", netns)
    assert (look(netns).links, eyes.held()) == ({"lo"}, [])


@pytest.mark.programs("ip")
def test_where_selinux_labels_it_ip_makes_the_same_tap(scratch: ScratchCni, tmp_path: Path) -> None:
    netns, label = scratch.container(), tmp_path / "exec"
    label.touch()
    wanted = Wanted(owner=5, group=6, multi_queue=True, context="system_u:system_r:container_t:s0")
    run_in(netns, lambda: make_labelled_tap("tap5", wanted, label))
    data = described(netns, "tap5")["info_data"]
    assert (data["type"], data["multi_queue"], data["user"], data["group"]) == ("tap", True, "games", "disk")
    assert label.read_text() == wanted.context
    with pytest.raises(PluginError, match=r"(?s)failed to run command .*: exit status \d+"):
        run_in(netns, lambda: make_labelled_tap("tap5", wanted, label))


def test_malformed_arguments_are_refused(scratch: ScratchCni, tap: Tap) -> None:
    with pytest.raises(InvalidEnvironment, match="unknown args"):
        scratch.add(tap, network(), "c1", scratch.container(), args_text="A=1")


def test_a_full_range_leaves_nothing(scratch: ScratchCni, tap: Tap, look: Look) -> None:
    config = network("10.88.0.0/30")
    scratch.add(tap, config, "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(Exhausted, match="no IP addresses available"):
        scratch.add(tap, config, "c1", netns)
    assert look(netns).links == {"lo"}
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(tap, config)


def test_an_interface_of_that_name_from_elsewhere_is_left_alone(
    scratch: ScratchCni, tap: Tap, eyes: Any, look: Look
) -> None:
    netns = scratch.container()
    eyes.change(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(InvalidRequest, match='failed to rename tap to "eth0": file exists'):
        scratch.add(tap, network(), "c1", netns)
    scratch.delete(tap, network(), "c1", netns)
    assert (look(netns).links, eyes.held()) == ({"lo", "eth0", "other0"}, [])


def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, tap: Tap, eyes: Any, look: Look
) -> None:
    netns, points, config = scratch.container(), 0, network(mtu=1400)

    def add() -> Any:
        return scratch.add(tap, config, "c1", netns)

    while killed_call(add, points):
        scratch.delete(tap, config, "c1", netns)
        assert (look(netns).links, eyes.held()) == ({"lo"}, [])
        assert killed_call(add, points)
        scratch.check(tap, config, "c1", netns, add())
        assert (look(netns).links, eyes.link(netns).mtu) == ({"lo", "eth0"}, 1400)
        scratch.delete(tap, config, "c1", netns)
        assert (look(netns).links, eyes.held()) == ({"lo"}, [])
        points += 1
    assert points > 4


def test_gc_releases_what_is_not_valid_and_status_is_well(scratch: ScratchCni, tap: Tap, eyes: Any) -> None:
    for container in ("c1", "c2"):
        scratch.add(tap, network(), container, scratch.container())
    scratch.gc(tap, network(), None)
    scratch.gc(tap, network(), [("c2", "eth0")])
    assert eyes.held() == ["10.88.0.3"]
    scratch.status(tap, network())
    scratch.delete(tap, network(), "c2", None)
    assert eyes.held() == []


def test_check_names_what_is_lost(scratch: ScratchCni, tap: Tap, eyes: Any) -> None:
    netns, config = scratch.container(), network()
    result = scratch.add(tap, config, "c1", netns)
    index = eyes.link(netns).index
    eyes.change(netns, lambda ip: ip.addr("del", index=index, address="10.88.0.2", prefixlen=24))
    with pytest.raises(PluginError, match=r"lost its address 10\.88\.0\.2/24"):
        scratch.check(tap, config, "c1", netns, result)
    eyes.change(netns, lambda ip: ip.link("del", index=index))
    with pytest.raises(PluginError, match="eth0 does not exist"):
        scratch.check(tap, config, "c1", netns, result)
    eyes.change(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(PluginError, match="eth0 is veth, not tun"):
        scratch.check(tap, config, "c1", netns, result)
