"""The verbs of host-device.

Owns: the order of the steps: find the interface, record who gets it, move it, give it addresses; and their way back.
Refuses: hooks, and making interfaces.

Moving an interface waits in the kernel, fifteen milliseconds and more each way: here that cannot be avoided.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniInterface,
    CniIp,
    CniResult,
    CniStatus,
    InvalidRequest,
    NotReady,
    PluginError,
)
from nodeplug_net.attachment import Attachment
from nodeplug_net.comparison import refuse
from nodeplug_net.host_device.config import DeviceConfig, parse_device, parse_named
from nodeplug_net.host_device.devices import find_device
from nodeplug_net.host_device.moving import find_inside, move_in, move_out, take_back
from nodeplug_net.host_device.records import Records
from nodeplug_net.inner_attachment import Log, addressed, collect, detach, differences, planned
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.undo import Errors, Undo


@dataclass(frozen=True, slots=True)
class HostDevices:
    """What the verbs share. Any thread may use it.

    Attributes:
        sysfs: where sysfs is mounted.
    """

    addressing: Addressing
    records: Records
    log: Log
    sysfs: Path = Path("/sys")

    def recover(self) -> None:
        """Release addresses that an earlier boot left, and forget who had which interface then."""
        self.addressing.recover()
        self.records.recover()

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves everything as it was.

        Raises:
            PluginError: there is no such interface, its name is taken in the container, or IPAM has no address.
            OSError: the kernel refuses.
        """
        config = parse_named(request, self.sysfs)
        with Undo(self.log) as undo:
            if config.dpdk:
                return self._attach_without_interface(request, config, undo)
            with Netlink() as netlink:
                outer = Links(netlink)
                device = None if self._is_inside(request, config) else self._find(request, config, outer)

                def ensure(undo: Undo) -> None:
                    if device is not None:
                        self._bring(request, outer, device, undo)

                plan = planned(request, config.ipam, self.addressing, undo, ensure)
                result = addressed(request, plan)
        return replace(result, dns=config.dns) if config.ipam else result

    def _attach_without_interface(self, request: CniAdd, config: DeviceConfig, undo: Undo) -> CniResult:
        """Get addresses for a program in the container that drives the device itself."""
        interface = CniInterface(request.ifname, sandbox=request.netns.path)
        if not config.ipam:
            return CniResult(interfaces=(interface,))
        found = self.addressing.add(request, config.ipam, undo)
        ips = tuple(CniIp(ip.address, gateway=ip.gateway, interface=0) for ip in found.ips)
        return replace(found, interfaces=(interface,), ips=ips, dns=config.dns)

    def _is_inside(self, request: CniAdd, config: DeviceConfig) -> bool:
        """Whether an earlier ADD of this attachment brought the interface.

        Raises:
            PluginError: the container has another one of that name.
        """
        record = self.records.get(request)
        device = record.device if record is not None else config.device
        with links_in(request.netns) as inner:
            present = inner.get(request.ifname)
        if present is None:
            return False
        if device and present.alias == device:
            return True
        raise InvalidRequest(_taken(request, config.device), details=f"found in {request.netns.path}")

    def _find(self, request: CniAdd, config: DeviceConfig, outer: Links) -> Link:
        try:
            return find_device(outer, config, self.sysfs)
        except InvalidRequest:
            missing = [one for one in self.records.of(request) if outer.get(one.device) is None]
            returned = [take_back(outer, one.device, one.ifname) for one in missing]
            if not any(returned):
                raise
        return find_device(outer, config, self.sysfs)

    def _bring(self, request: CniAdd, outer: Links, device: Link, undo: Undo) -> None:
        undo.push(f"give interface {device.name} back", partial(self._withdraw, request, device))
        self.records.note(request, device.name)
        move_in(outer, device, request.netns, request.ifname)

    def _withdraw(self, request: CniAdd, device: Link) -> None:
        """Return to what was before an ADD."""
        attachment = Attachment.of(request)
        with links_in(request.host_netns) as outer:
            if outer.get(device.name) is None:
                with links_in(request.netns) as inner:
                    found = find_inside(inner, attachment, device.name)
                    link = inner.get(device.name) if found is None else found[0]  # moved, but not named
                    if link is None:
                        return
                    move_out(inner, outer, link, device.name, attachment, request.host_netns)
            now = outer.get(device.name)
            if device.is_up and now is not None and not now.is_up:
                outer.set_up(now)
        self.records.forget(request, attachment.label)

    def detach(self, request: CniDel) -> None:
        """Serve DEL: give the interface back, and release the addresses.

        Raises:
            PluginError: the host has another interface of its name; the runtime will repeat DEL.
            OSError: the kernel refuses.
        """
        detach(request, self.addressing, partial(self._give_back, request))

    def _give_back(self, request: CniDel) -> None:
        if self._has_no_interface(request):
            return
        attachment, record = Attachment.of(request), self.records.get(request)
        with links_in(request.host_netns) as outer:
            if request.netns is not None:
                with links_in(request.netns) as inner:
                    found = find_inside(inner, attachment, record.device if record is not None else "")
                    if found is not None:
                        move_out(inner, outer, *found, attachment, request.host_netns)
                        self.records.forget(request, attachment.label)
                        return
            if record is not None and take_back(outer, record.device, record.ifname):
                self.records.forget(request, attachment.label)

    def _has_no_interface(self, request: CniDel) -> bool:
        """Whether a program drives the device; what is wrong in the configuration does not keep a container."""
        try:
            return parse_device(request, self.sysfs).dpdk
        except InvalidRequest:
            return False

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        if parse_named(request, self.sysfs).dpdk:
            return []
        with links_in(request.netns) as inner:
            return list(differences(request, inner, inner.get(request.ifname)))

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        refuse(request, self.differences(request))
        self.addressing.check(request, parse_named(request, self.sysfs).ipam)

    def collect(self, request: CniGc) -> None:
        """Serve GC: name interfaces that the kernel returned as the host knows them, and release addresses.

        One in a namespace that lives on and that nobody names cannot be reached: its record stays until it comes back.

        Raises:
            PluginError: the folder of addresses cannot be used.
            OSError: the kernel refuses.
        """
        errors = Errors()
        if request.valid is not None:
            valid = {Attachment(request.network, one.container_id, one.ifname).label for one in request.valid}
            lost = [one for one in self.records.of(request, request.network) if one.label not in valid]
            with errors.kept(), Netlink() as netlink:
                for one in lost:
                    if take_back(Links(netlink), one.device, one.ifname):
                        self.records.forget(request, one.label)
        with errors.kept():
            collect(request, self.addressing)
        errors.raise_all()

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the interface is neither on the host nor in a container, or IPAM has no address.
            InvalidRequest: a key is wrong.
        """
        config = parse_device(request, self.sysfs)
        if config.names_any and not config.dpdk and not any(self.records.of(request, request.network)):
            with Netlink() as netlink:
                try:
                    find_device(Links(netlink), config, self.sysfs)
                except PluginError as error:
                    raise NotReady(f"network {request.network}: {error.message}", details=error.details) from error
        self.addressing.status(request, config.ipam)


def _taken(request: CniAdd, device: str) -> str:
    """Say in the reference's words that the container has an interface of that name."""
    if request.ifname == "lo":
        return f'failed to move link failed to rename host device "{device}" to "lo": file exists'
    return f'failed to move link failed to move "{request.ifname}" (host: "{device}") to container NS: file exists'
