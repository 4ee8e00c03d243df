"""A card that is named by its function of the PCI bus: a folder stands for sysfs."""

from pathlib import Path
from typing import Any

import pytest
from tests.node.links.host_device.card import MAC, Look, flat, is_home, network

from nodeplug import CniDns, CniInterface, InvalidRequest
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.host_device.records import Records
from nodeplug_net.host_device.verbs import HostDevices
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam


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
