"""The network configuration of host-device: the keys of the reference plugin, read into values.

Owns: defaults, types, the reference's order and words, and what the capability `deviceID` stands for.
Refuses: the interface itself (see `devices`). Keys match without regard to case, as Go matches them.

Source: plugins/main/host-device of the CNI plugins, whose sentences these are.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import CniDns, CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf, DelegationConf
from nodeplug_net.ipam.config import DnsConf

PCI: Final = "bus/pci/devices"
AUXILIARY: Final = "bus/auxiliary/devices"
_USERSPACE_DRIVERS: Final = frozenset({"vfio-pci", "uio_pci_generic", "igb_uio"})
"""Drivers of functions that a program in the container has without the kernel (DPDK)."""


class _RuntimeConf(Conf):
    device_id: str = ""


class NetConf(DelegationConf):
    """The keys of the reference plugin, under its names."""

    device: str = ""
    hwaddr: str = ""
    kernelpath: str = ""
    pci_bus_id: str = ""
    dpdk_mode: bool = False
    dns: DnsConf = DnsConf()
    runtime_config: _RuntimeConf = _RuntimeConf()


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One network of the host-device plugin: the first of the five names that is not empty counts.

    Attributes:
        device: the interface's name.
        hwaddr: its hardware address, as written.
        kernelpath: of its device below /sys/devices.
        pci: the address of its function.
        auxiliary: its name on the auxiliary bus.
        dpdk: whether there is no interface, because a program in the container drives the function.
        dns: instead of IPAM's.
        ipam: the IPAM plugin, or empty for an interface without addresses.
    """

    device: str = ""
    hwaddr: str = ""
    kernelpath: str = ""
    pci: str = ""
    auxiliary: str = ""
    dpdk: bool = False
    dns: CniDns = field(default_factory=CniDns)
    ipam: str = ""

    @property
    def names_any(self) -> bool:
        """Whether it says which interface it is about."""
        return any((self.device, self.hwaddr, self.kernelpath, self.pci, self.auxiliary))


def parse_device(request: CniRequest, sysfs: Path = Path("/sys")) -> DeviceConfig:
    """Read the configuration of a request; it may name no interface, as that of STATUS does.

    Args:
        request: any.
        sysfs: where sysfs is mounted.

    Raises:
        InvalidRequest: a key is wrong, or there is no such device.
    """
    try:
        conf = request.parse(NetConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    pci, auxiliary, wanted = conf.pci_bus_id, "", conf.runtime_config.device_id
    if wanted:
        if joined(sysfs, PCI, wanted).exists():
            pci = wanted
        elif joined(sysfs, AUXILIARY, wanted).exists():
            pci, auxiliary = "", wanted
        else:
            raise InvalidRequest(
                f"runtime config DeviceID {wanted} not found or unsupported",
                details="neither the PCI nor the auxiliary bus has it",
            )
    return DeviceConfig(
        device=conf.device,
        hwaddr=conf.hwaddr,
        kernelpath=conf.kernelpath,
        pci=pci,
        auxiliary=auxiliary,
        dpdk=_is_driven_by_programs(joined(sysfs, PCI, pci)) if pci else conf.dpdk_mode,
        dns=conf.dns.value(),
        ipam=conf.ipam.type,
    )


def parse_named(request: CniRequest, sysfs: Path) -> DeviceConfig:
    """Read a configuration that says which interface it is about.

    Raises:
        InvalidRequest: it does not, a key is wrong, or there is no such device.
    """
    config = parse_device(request, sysfs)
    if not config.names_any:
        raise InvalidRequest('specify either "device", "hwaddr", "kernelpath" or "pciBusID"')
    return config


def joined(*parts: str | Path) -> Path:
    """Join parts as Go does: one that begins with a slash is below those before, and dots are resolved."""
    return Path(os.path.normpath("/".join(map(str, parts))))


def _is_driven_by_programs(function: Path) -> bool:
    driver = function / "driver"
    if not driver.exists():
        raise InvalidRequest(
            f"error with host device: lstat {_first_missing(driver)}: no such file or directory",
            details="the function is not there, or has no driver",
        )
    return driver.resolve().name in _USERSPACE_DRIVERS


def _first_missing(path: Path) -> Path:
    """Return what Go's EvalSymlinks names: the first part that is missing, behind the links before it."""
    known = Path("/")
    for part in path.parts[1:]:
        if not (known / part).exists():
            return known / part
        known = (known / part).resolve()
    return known
