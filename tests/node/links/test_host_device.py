"""host-device in scratch namespaces: an end of a veth pair stands for the card that a container gets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.killed_call import killed_call

from nodeplug import CniDns, CniInterface, CniResult, Exhausted, InvalidRequest, Netns, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.host_device.plugin import HostDevice, HostDeviceConfig
from nodeplug_net.host_device.records import Records
from nodeplug_net.host_device.verbs import HostDevices
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links

Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]
MAC = "02:00:00:00:00:11"


def run_ip(netns: Netns, work: Callable[[Any], Any]) -> None:
    def change() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

        with IPRoute() as route:
            work(route)

    run_in(netns, change)


@pytest.fixture
def plugin(scratch: ScratchCni) -> HostDevice:
    """The plugin, on a host whose interface card0 is wired to wire0."""

    def wire(route: Any) -> None:
        route.link("add", ifname="card0", kind="veth", peer="wire0", address=MAC)
        for name in ("card0", "wire0"):
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    run_ip(scratch.host_netns, wire)
    made = HostDevice(HostDeviceConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(made.start)
    return made


def network(**keys: Any) -> dict[str, Any]:
    named = keys.keys() & {"device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig"}
    device = {} if named else {"device": "card0"}
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-host-device", "ipam": ipam, **device, **keys}


def flat(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in network(**keys).items() if key != "ipam"}


def link(netns: Netns, name: str) -> Link | None:
    def find() -> Link | None:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    return run_in(netns, find)


def held(scratch: ScratchCni) -> list[str]:
    folder = scratch.folder / "networks" / "net"
    return [path.name for path in folder.glob("*") if path.name[0].isdigit()]


def records(scratch: ScratchCni) -> list[str]:
    return [path.name for path in (scratch.host.run_dir / "devices").glob("*")]


def is_home(scratch: ScratchCni) -> bool:
    """Whether the card is on the host as it was, and nothing is held."""
    card = link(scratch.host_netns, "card0")
    return (card is not None and card.alias == "" and card.mac == MAC) and not held(scratch) and not records(scratch)


@pytest.mark.parametrize("config", [network(), flat(), network(dns={"domain": "a"})], ids=["addresses", "none", "dns"])
def test_the_interface_is_the_containers_until_del(
    scratch: ScratchCni, plugin: HostDevice, look: Look, config: dict[str, Any]
) -> None:
    netns = scratch.container()
    result = scratch.add(plugin, config, "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None
    assert (inside.alias, inside.mac, inside.is_up) == ("card0", MAC, True)
    assert link(scratch.host_netns, "card0") is None
    assert result.interfaces == (CniInterface("eth0", mac=MAC, sandbox=netns.path),)
    assert [(str(ip.address), ip.interface) for ip in result.ips] == ([("10.88.0.2/24", 0)] if "ipam" in config else [])
    assert result.dns == CniDns(domain="a" if "dns" in config else "")
    scratch.check(plugin, config, "c1", netns, result)
    for _ in range(2):
        scratch.delete(plugin, config, "c1", netns)
        assert is_home(scratch)
        assert look(netns).links == {"lo"}


def test_what_is_beyond_the_wire_is_reached(scratch: ScratchCni, plugin: HostDevice, ping: Ping) -> None:
    def beyond(route: Any) -> None:
        route.addr("add", index=route.link_lookup(ifname="wire0")[0], address="10.88.0.1", prefixlen=24)

    run_ip(scratch.host_netns, beyond)
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    assert ping(netns, "10.88.0.1")


def test_a_hardware_address_names_the_interface(scratch: ScratchCni, plugin: HostDevice) -> None:
    config, netns = network(hwaddr=MAC.upper().replace(":", "-")), scratch.container()
    result = scratch.add(plugin, config, "c1", netns)
    assert scratch.add(plugin, config, "c1", netns) == result
    scratch.delete(plugin, config, "c1", netns)
    assert is_home(scratch)


def test_an_interface_of_two_names_keeps_the_one_that_is_asked_for(scratch: ScratchCni, plugin: HostDevice) -> None:
    """A name of the host that the container has, too, and one of the container that the host has."""
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="card0", kind="veth", peer="other0"))
    scratch.add(plugin, network(), "c1", netns, ifname="wire0")
    inside = link(netns, "wire0")
    assert inside is not None
    assert inside.alias == "card0"
    scratch.delete(plugin, network(), "c1", netns, ifname="wire0")
    assert is_home(scratch)


def test_a_repeated_add_returns_the_same(scratch: ScratchCni, plugin: HostDevice, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(plugin, network(), "c1", netns)
    before = look(netns)
    assert scratch.add(plugin, network(), "c1", netns) == first
    assert look(netns) == before


def test_a_second_container_is_told_that_the_interface_is_away(scratch: ScratchCni, plugin: HostDevice) -> None:
    scratch.add(plugin, network(), "c1", scratch.container())
    with pytest.raises(InvalidRequest, match="failed to find host device: Link not found"):
        scratch.add(plugin, network(), "c2", scratch.container())
    assert held(scratch) == ["10.88.0.2"]
    scratch.status(plugin, network())  # the network is not broken because its card is in use


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "", "runtimeConfig": {}}, r'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
        ({"device": 5}, "failed to load netconf: "),
        ({"device": "nope"}, "failed to find host device: Link not found"),
        ({"hwaddr": "x"}, 'failed to parse MAC address "x": address x: invalid MAC address'),
        ({"hwaddr": "02:00:00:00:00:99"}, "failed to find host device: failed to find physical interface"),
        ({"kernelpath": "/tmp/x"}, 'kernel device path "/tmp/x" must be absolute and begin with /sys/devices/'),
        (
            {"kernelpath": "/sys/devices/nope"},
            'directory /sys/devices/nope/net: "open /sys/devices/nope/net: no such file or directory"',
        ),
        (
            {"pciBusID": "0000:ff:ff.7"},
            r"error with host device: lstat /sys/bus/pci\S*: no such file or directory",
        ),
        ({"runtimeConfig": {"deviceID": "nope"}}, "runtime config DeviceID nope not found or unsupported"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_moved(
    scratch: ScratchCni, plugin: HostDevice, keys: dict[str, Any], said: str
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match=said):
        scratch.add(plugin, network(**keys), "c1", netns)
    scratch.delete(plugin, network(**keys), "c1", netns)
    assert is_home(scratch)


def test_what_the_kernel_does_not_move_is_said(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    with pytest.raises(PluginError, match='failed to move link failed to move "lo" to tempNS: invalid argument'):
        scratch.add(plugin, network(device="lo"), "c1", netns)
    assert is_home(scratch)


@pytest.mark.parametrize(
    ("ifname", "said"),
    [
        ("eth0", r'failed to move "eth0" \(host: "card0"\) to container NS: file exists'),
        ("lo", 'failed to rename host device "card0" to "lo": file exists'),
    ],
)
def test_a_name_that_the_container_has_is_left_to_who_made_it(
    scratch: ScratchCni, plugin: HostDevice, look: Look, ifname: str, said: str
) -> None:
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(InvalidRequest, match=f"failed to move link {said}"):
        scratch.add(plugin, network(), "c1", netns, ifname=ifname)
    scratch.delete(plugin, network(), "c1", netns, ifname=ifname)
    assert look(netns).links == {"lo", "eth0", "other0"}
    assert is_home(scratch)


def test_a_full_range_gives_the_interface_back_as_it_was(scratch: ScratchCni, plugin: HostDevice) -> None:
    foreign = {"type": "nope"}
    with pytest.raises(PluginError):
        scratch.add(plugin, network(ipam=foreign), "c1", scratch.container())
    card = link(scratch.host_netns, "card0")
    assert card is not None
    assert card.is_up
    assert is_home(scratch)
    one = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/30"}]]}
    (scratch.folder / "networks/net").mkdir(parents=True, exist_ok=True)
    (scratch.folder / "networks/net/10.88.0.2").write_text("other\r\neth0")
    with pytest.raises(Exhausted, match="no IP addresses available"):
        scratch.add(plugin, network(ipam=one), "c1", scratch.container())
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(plugin, network(ipam=one))
    assert link(scratch.host_netns, "card0") is not None


# --- the way back


def test_a_name_that_the_host_gave_away_keeps_the_interface_in_the_container(
    scratch: ScratchCni, plugin: HostDevice
) -> None:
    netns = scratch.container()
    result = scratch.add(plugin, network(), "c1", netns)
    run_ip(scratch.host_netns, lambda ip: ip.link("add", ifname="card0", kind="veth", peer="other0"))
    with pytest.raises(PluginError, match='failed to move "card0" to hostNS: file exists'):
        scratch.delete(plugin, network(), "c1", netns)
    scratch.check(plugin, network(), "c1", netns, result)
    run_ip(scratch.host_netns, lambda ip: ip.link("del", index=ip.link_lookup(ifname="card0")[0]))
    scratch.delete(plugin, network(), "c1", netns)
    assert is_home(scratch)


def test_an_interface_comes_back_although_its_alias_is_lost(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None

    def clear() -> None:
        with Netlink() as netlink:
            Links(netlink).clear_alias(inside)

    run_in(netns, clear)
    scratch.delete(plugin, network(), "c1", netns)
    assert is_home(scratch)


def returned_by_the_kernel(scratch: ScratchCni, netns: Netns, name: str = "eth0") -> None:
    """Do what the kernel does with a card when its namespace ends (net/core/dev.c, default_device_exit_net).

    It moves it to the host, with its alias, under its name of the container or, where the host has that, another; a
    veth would end.
    """

    def move(ip: Any) -> None:
        index = ip.link_lookup(ifname="eth0")[0]
        ip.link("set", index=index, state="down")
        ip.link("set", index=index, ifname=name)
        ip.link("set", index=index, net_ns_fd=scratch.host_netns.fd)

    run_ip(netns, move)


@pytest.mark.parametrize("name", ["eth0", "dev3"])
def test_what_the_kernel_returned_gets_its_name_from_a_del_without_a_namespace(
    scratch: ScratchCni, plugin: HostDevice, name: str
) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    returned_by_the_kernel(scratch, netns, name)
    scratch.delete(plugin, network(), "c1", None)
    assert is_home(scratch)


def test_what_the_kernel_returned_gets_its_name_from_a_collection(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    scratch.gc(plugin, network(), [("c1", "eth0")])
    scratch.gc(plugin, network(), None)
    scratch.gc(plugin, network(), [("c1", "eth0")])
    assert len(records(scratch)) == 1
    returned_by_the_kernel(scratch, netns)
    scratch.gc(plugin, network(), [])
    assert is_home(scratch)


def test_what_the_kernel_returned_is_found_by_the_next_add(scratch: ScratchCni, plugin: HostDevice) -> None:
    first, second = scratch.container(), scratch.container()
    scratch.add(plugin, flat(), "c1", first)
    returned_by_the_kernel(scratch, first)
    result = scratch.add(plugin, flat(), "c2", second)
    scratch.check(plugin, flat(), "c2", second, result)
    scratch.delete(plugin, flat(), "c1", None)
    scratch.check(plugin, flat(), "c2", second, result)
    scratch.delete(plugin, flat(), "c2", second)
    assert is_home(scratch)


def test_an_interface_with_an_alias_of_an_administrator_is_left_alone(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, flat(), "c1", netns)

    def label(ip: Any) -> None:
        ip.link("set", index=ip.link_lookup(ifname="wire0")[0], IFLA_IFALIAS="card0")

    run_ip(scratch.host_netns, label)
    scratch.gc(plugin, flat(), [])
    assert link(scratch.host_netns, "wire0") is not None
    scratch.delete(plugin, flat(), "c1", netns)
    assert is_home(scratch)


def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, plugin: HostDevice, look: Look
) -> None:
    netns, points = scratch.container(), 0

    def add() -> CniResult:
        return scratch.add(plugin, network(), "c1", netns)

    while killed_call(add, points):
        scratch.delete(plugin, network(), "c1", netns)
        assert is_home(scratch)
        assert killed_call(add, points)
        scratch.check(plugin, network(), "c1", netns, add())
        scratch.delete(plugin, network(), "c1", netns)
        assert is_home(scratch)
        assert look(netns).links == {"lo"}
        points += 1
    assert points > 4
    scratch.delete(plugin, network(), "c1", netns)


def test_a_del_killed_at_any_message_is_completed_by_the_next(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns, points = scratch.container(), 0

    def delete() -> None:
        scratch.delete(plugin, network(), "c1", netns)

    while True:
        scratch.add(plugin, network(), "c1", netns)
        if not killed_call(delete, points):
            break
        delete()
        assert is_home(scratch)
        points += 1
    assert points > 4
    assert is_home(scratch)


def test_a_gc_killed_at_any_message_is_completed_by_the_next(scratch: ScratchCni, plugin: HostDevice) -> None:
    points = 0

    def collect() -> None:
        scratch.gc(plugin, network(), [])

    while True:
        netns = scratch.container()
        scratch.add(plugin, network(), "c1", netns)
        returned_by_the_kernel(scratch, netns)
        if not killed_call(collect, points):
            break
        collect()
        assert is_home(scratch)
        points += 1
    assert points > 2
    assert is_home(scratch)


# --- what sysfs says: a folder stands for it, in which the card is a function of the PCI bus


@pytest.fixture
def sysfs(scratch: ScratchCni) -> Path:
    made = scratch.folder / "sys"
    (made / "devices/pci0/0000:01:00.0/net/card0").mkdir(parents=True)
    (made / "devices/pci0/0000:02:00.0/virtio3/net/card0").mkdir(parents=True)
    (made / "devices/pci0/0000:03:00.0").mkdir()
    (made / "devices/pci0/0000:04:00.0/net").mkdir(parents=True)
    (made / "bus/pci/devices").mkdir(parents=True)
    for name in ("mlx5_core", "vfio-pci"):
        (made / "bus/pci/drivers" / name).mkdir(parents=True)
    for function in (made / "devices/pci0").iterdir():
        (made / "bus/pci/devices" / function.name).symlink_to(function)
        driver = "vfio-pci" if function.name == "0000:03:00.0" else "mlx5_core"
        (function / "driver").symlink_to(made / "bus/pci/drivers" / driver)
    (made / "bus/auxiliary/devices/mlx5_core.sf.2/net/card0").mkdir(parents=True)
    return made


class OnBus:
    """The plugin's verbs as its hooks call them, with another sysfs."""

    def __init__(self, scratch: ScratchCni, sysfs: Path) -> None:
        addressing = Addressing(Ipam(scratch.host, scratch.folder / "networks"), scratch.host)
        verbs = HostDevices(addressing, Records(scratch.host), scratch.host.log, sysfs)
        self.cni_add, self.cni_del, self.cni_check = verbs.attach, verbs.detach, verbs.check
        self.cni_status = verbs.status


@pytest.mark.parametrize(
    "keys",
    [
        {"pciBusID": "0000:01:00.0"},
        {"pciBusID": "0000:02:00.0"},
        {"kernelpath": "{sysfs}/devices/pci0/0000:01:00.0"},
        {"runtimeConfig": {"deviceID": "0000:01:00.0"}},
        {"runtimeConfig": {"deviceID": "mlx5_core.sf.2"}, "pciBusID": "0000:03:00.0"},
    ],
    ids=["pci", "virtio", "path", "runtime", "auxiliary"],
)
@pytest.mark.usefixtures("plugin")
def test_a_bus_names_the_interface(scratch: ScratchCni, sysfs: Path, keys: dict[str, Any]) -> None:
    plugin, netns = OnBus(scratch, sysfs), scratch.container()
    path = {"kernelpath": keys["kernelpath"].format(sysfs=sysfs)} if "kernelpath" in keys else {}
    config = network(**{**keys, **path})
    result = scratch.add(plugin, config, "c1", netns)
    assert result.interfaces[0].mac == MAC
    scratch.check(plugin, config, "c1", netns, result)
    scratch.delete(plugin, config, "c1", netns)
    assert is_home(scratch)


@pytest.mark.parametrize("ipam", [True, False])
@pytest.mark.usefixtures("plugin")
def test_a_function_of_a_userspace_driver_stays_where_it_is(
    scratch: ScratchCni, sysfs: Path, look: Look, *, ipam: bool
) -> None:
    plugin, netns = OnBus(scratch, sysfs), scratch.container()
    config = (network if ipam else flat)(pciBusID="0000:03:00.0", dns={"domain": "a"})
    result = scratch.add(plugin, config, "c1", netns, ifname="net1")
    assert result.interfaces == (CniInterface("net1", sandbox=netns.path),)
    assert [ip.interface for ip in result.ips] == ([0] if ipam else [])
    assert result.dns == CniDns(domain="a" if ipam else "")
    assert look(netns).links == {"lo"}
    scratch.check(plugin, config, "c1", netns, result, ifname="net1")
    scratch.status(plugin, config)
    scratch.delete(plugin, config, "c1", netns, ifname="net1")
    assert is_home(scratch)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"pciBusID": "0000:04:00.0"}, "failed to find network device in path .*0000:04:00.0/net"),
        ({"pciBusID": "0000:05:00.0"}, "error with host device: lstat .*/0000:05:00.0: no such file or directory"),
        ({"pciBusID": "0000:06:00.0"}, "error with host device: lstat .*/0000:06:00.0/driver: no such file"),
        ({"pciBusID": "0000:07:00.0"}, "no net directory under pci device 0000:07:00.0"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("plugin")
def test_a_function_without_an_interface_is_refused(
    scratch: ScratchCni, sysfs: Path, keys: dict[str, Any], said: str
) -> None:
    (sysfs / "bus/pci/devices/0000:06:00.0").mkdir()
    (sysfs / "bus/pci/devices/0000:07:00.0").mkdir()
    (sysfs / "bus/pci/devices/0000:07:00.0/driver").symlink_to(sysfs / "bus/pci/drivers/mlx5_core")
    with pytest.raises(InvalidRequest, match=said):
        scratch.add(OnBus(scratch, sysfs), network(**keys), "c1", scratch.container())
    assert is_home(scratch)


# --- CHECK, STATUS


def test_check_names_what_is_lost(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns, config = scratch.container(), network()
    result = scratch.add(plugin, config, "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None
    run_ip(netns, lambda ip: ip.addr("del", index=inside.index, address="10.88.0.2", prefixlen=24))
    with pytest.raises(PluginError, match=r"lost its address 10\.88\.0\.2/24"):
        scratch.check(plugin, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("set", index=inside.index, address="02:00:00:00:00:77"))
    with pytest.raises(PluginError, match="has MAC 02:00:00:00:00:77, not"):
        scratch.check(plugin, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("del", index=inside.index))
    with pytest.raises(PluginError, match="eth0 does not exist"):
        scratch.check(plugin, config, "c1", netns, result)


def test_status_reports_an_interface_that_is_nowhere(scratch: ScratchCni, plugin: HostDevice) -> None:
    scratch.status(plugin, network())
    scratch.status(plugin, network(runtimeConfig={}))  # the runtime names it with ADD
    with pytest.raises(NotReady, match="failed to find host device: Link not found"):
        scratch.status(plugin, network(device="nope"))
