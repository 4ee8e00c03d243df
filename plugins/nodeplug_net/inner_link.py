"""Interfaces that are made in the container's namespace alone: dummy, ipvlan, macvlan, tap, vlan.

Owns: making such an interface under a computed name and giving it its own when it is there, finding that of an earlier
ADD, and deleting it.
Refuses: what is special about a kind. There is no end on the host: an interface ends with its namespace, and GC cannot
reach one of a namespace that nobody names.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nodeplug import CniAdd, CniDel, CniGc, CniResult, InvalidRequest, Netns
from nodeplug_net.attachment import Attachment
from nodeplug_net.inner_attachment import addressed, collect, detach, planned
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.netlink.connection import EEXIST, Request
from nodeplug_net.netlink.link_messages import name_link
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import Undo

Create = Callable[[Links, str], None]
"""Makes an interface of some name in the container's namespace, whose links are given."""


@dataclass(frozen=True, slots=True)
class InnerLinks:
    """What the verbs of one plugin share, and those that do not depend on the kind. Any thread may use it.

    Attributes:
        kind: of the interfaces, as the kernel names it.
        taken: the sentence about a name that is taken; `{}` stands for the name.
    """

    kind: str
    taken: str
    addressing: Addressing
    reaper: Reaper
    log: logging.LoggerAdapter[logging.Logger]

    def recover(self) -> None:
        """Release addresses that an earlier boot left."""
        self.addressing.recover()

    def make(
        self,
        request: CniAdd,
        ipam: str,
        create: Create,
        *,
        sysctls: tuple[str, ...] = (),
        waits_for_duplicates: bool = True,
        given: CniResult | None = None,
    ) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Args:
            request: with the namespace.
            ipam: the IPAM plugin, or empty.
            create: makes the interface.
            sysctls: see `addressed`.
            waits_for_duplicates: see `addressed`.
            given: see `planned`.

        Raises:
            PluginError: IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """
        with Undo(self.log) as undo:
            ensure = partial(self.ensure, request, create)
            plan = planned(request, ipam, self.addressing, undo, ensure, given)
            return addressed(request, plan, sysctls=sysctls, waits_for_duplicates=waits_for_duplicates)

    def ensure(self, request: CniAdd, create: Create, undo: Undo) -> None:
        """Make the interface, unless an earlier ADD of this attachment did.

        Raises:
            InvalidRequest: its name is taken.
            OSError: the kernel refuses.
        """
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
        netns = request.netns
        end = partial(self._end, Attachment.of(request), netns) if netns is not None else lambda: None
        detach(request, self.addressing, end)

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
        collect(request, self.addressing)
