"""Attachments whose interface is in the container's namespace alone: dummy, macvlan.

Owns: making such an interface under a computed name and giving it its own when it is there, finding that of an earlier
ADD, and the verbs that do not depend on its kind.
Refuses: what is special about a kind. There is no end on the host: an interface ends with its namespace, and GC cannot
reach one of a namespace that nobody names.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniInterface, CniIp, CniResult, InvalidRequest, Netns
from nodeplug_net.attachment import Attachment
from nodeplug_net.comparison import inside_differences
from nodeplug_net.container_interface import configure
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.ipam.addressing import BEFORE_INTERFACES, IN_PROCESS, Addressing
from nodeplug_net.netlink.connection import EEXIST, Request
from nodeplug_net.netlink.link_messages import name_link
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import Errors, Undo

Create = Callable[[Links, str], None]
"""Makes an interface of some name in the container's namespace, whose links are given."""


@dataclass(frozen=True, slots=True)
class InnerLinks:
    """What the verbs of one plugin share. Any thread may use it.

    Attributes:
        kind: of the interfaces, as the kernel names it.
        taken: the sentence about a name that is taken; `{}` stands for the name.
    """

    kind: str
    taken: str
    addressing: Addressing
    reaper: Reaper
    log: logging.LoggerAdapter[logging.Logger]

    def attach(self, request: CniAdd, ipam: str, create: Create, prepare: Callable[[CniResult], None]) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Args:
            request: with the namespace.
            ipam: the IPAM plugin, or empty.
            create: makes the interface.
            prepare: called in the container's namespace with the plan, before there are addresses.

        Raises:
            PluginError: IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        with Undo(self.log) as undo:
            early = ipam in BEFORE_INTERFACES
            found = self.addressing.add(request, ipam, undo) if early else CniResult()
            self._ensure(request, create, undo)
            if ipam and not early:
                found = self.addressing.add(request, ipam, undo)
            plan = replace(found, ips=tuple(CniIp(ip.address, gateway=ip.gateway, interface=0) for ip in found.ips))
            inside = configure(request, plan, prepare=lambda: prepare(plan), dad=True)
        interface = CniInterface(inside.name, mac=inside.mac, sandbox=request.netns.path)
        return replace(plan, interfaces=(interface,))

    def _ensure(self, request: CniAdd, create: Create, undo: Undo) -> None:
        attachment = Attachment.of(request)
        made = attachment.host_veth  # a host has the names of its containers, too, and old kernels look there first
        with links_in(request.netns) as inner:
            present = inner.get(request.ifname)
            if present is not None and (present.alias, present.kind) == (attachment.label, self.kind):
                return
            if present is not None:
                raise self._name_is_taken(request)
            left = inner.get(made)
            if left is not None:
                self._delete(left, request.netns, inner)
            undo.push(f"delete interface {request.ifname}", lambda: self._end(attachment, request.netns))
            create(inner, made)
            link = inner.get(made)
            if link is not None:
                what = f"name interface {made} of {request.netns.path} {request.ifname}"
                named = Request(name_link(link.index, request.ifname, attachment.label), what, EEXIST)
                if inner.netlink.ask(named)[0].error:
                    raise self._name_is_taken(request)

    def _name_is_taken(self, request: CniAdd) -> InvalidRequest:
        return InvalidRequest(
            self.taken.format(request.ifname),
            details=f"found in {request.netns.path}; delete it or choose another CNI_IFNAME",
        )

    def detach(self, request: CniDel) -> None:
        """Serve DEL: remove everything that can be removed, then report the first failure.

        Raises:
            PluginError: something is left; the runtime will repeat DEL.
            OSError: the kernel refuses.
        """
        ipam, errors, gone = request.parse(DelegationConf).ipam.type, Errors(), False
        if ipam not in IN_PROCESS:  # before the link, as a dhcp lease is returned through the interface
            with errors.kept():
                self.addressing.delete(request, ipam)
        with errors.kept():
            if request.netns is not None:
                self._end(Attachment.of(request), request.netns)
            gone = True
        if ipam in IN_PROCESS and gone:
            with errors.kept():
                self.addressing.delete(request, ipam)
        errors.raise_all()

    def _end(self, attachment: Attachment, netns: Netns) -> None:
        """Delete the interface of an attachment, also one that the reference made, or a killed ADD."""
        with links_in(netns) as inner:
            for name in (attachment.ifname, attachment.host_veth):
                link = inner.get(name)
                if link is not None and link.kind == self.kind and link.alias in {"", attachment.label}:
                    self._delete(link, netns, inner)

    def _delete(self, link: Link, netns: Netns, inner: Links) -> None:
        with netns.entered():
            deletion = self.reaper.delete(link)
        deletion.wait(inner)

    def collect(self, request: CniGc) -> None:
        """Serve GC: release the addresses of attachments that are not valid.

        Raises:
            PluginError: the folder of addresses cannot be used.
        """
        self.addressing.collect(request, request.parse(DelegationConf).ipam.type)

    def differences(self, request: CniCheck, inner: Links) -> Iterator[str]:
        """Compare the interface with the result."""
        inside = inner.get(request.ifname)
        if inside is None:
            yield f"interface {request.ifname} does not exist in {request.netns.path}"
            return
        if inside.kind != self.kind:
            yield f"interface {request.ifname} is {inside.kind or 'a device'}, not {self.kind}"
            return
        interfaces = request.prev_result.interfaces
        expected = next((one for one in interfaces if one.name == request.ifname and one.sandbox), None)
        if expected is None:
            yield f"the result has no interface {request.ifname} with a sandbox"
            return
        yield from inside_differences(request, inner, inside, expected)
