"""The veth pair of one attachment: one end on the host under a computed name, the other in the container.

Owns: creating it where its ends belong, finding that of an earlier ADD, and the undo.
Refuses: moving a link between namespaces, and random names: each costs more than the whole ADD, or loses the pair.
"""

import errno
from collections.abc import Callable
from dataclasses import dataclass

from nodeplug import CniAdd, Exhausted, InvalidRequest, PluginError, TryAgain
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, Request
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.netlink.messages import mac_bytes, u32
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import Undo


@dataclass(slots=True)
class VethPair:
    """The pair of one ADD in progress.

    Attributes:
        links: of the host namespace.
        reaper: deletes what is in the way, or half-made.
        undo: the steps back.
        mtu: of both ends; 0 leaves it to the kernel.
        mac: the container's hardware address, or empty.
        bridge: whose port the host end is; None for one that is nobody's.
    """

    request: CniAdd
    links: Links
    reaper: Reaper
    undo: Undo
    mtu: int = 0
    mac: str = ""
    bridge: Link | None = None

    @property
    def name(self) -> str:
        """The name of the host end."""
        return Attachment.of(self.request).host_veth

    def ensure(self, created: Callable[[], None] = lambda: None) -> None:
        """Create the pair, its host end up, or find the one of an earlier ADD of this attachment.

        Args:
            created: called when the pair is new, before the step that deletes it is pushed.

        Raises:
            InvalidRequest: the container has an interface of that name from elsewhere.
            TryAgain: another attachment has the same host name by chance.
            Exhausted: the bridge has as many ports as it can have.
            PluginError: the kernel cannot make such a pair.
            OSError: the kernel refuses.
        """
        if not self._create(created):
            self._adopt_or_remove(created)

    def _create(self, created: Callable[[], None]) -> bool:
        """Create the pair; False when one of its names is taken."""
        request = self.request
        values = {"name": self.name.encode(), "peer": request.ifname.encode(), "netns": u32(request.netns.fd)}
        if self.bridge is not None:
            values["master"] = u32(self.bridge.index)
        if self.mtu:
            values["mtu"] = u32(self.mtu)
        if self.mac:
            values["mac"] = mac_bytes(self.mac)
        template = messages.create_veth(mtu=bool(self.mtu), mac=bool(self.mac), port=self.bridge is not None)
        what = f"create interface {request.ifname} in {request.netns.path} with {self._host_end()}"
        if self.mtu:
            what += f" and MTU {self.mtu}"
        try:
            if self.links.netlink.ask(Request(template.fill(**values), what, EEXIST))[0].error:
                return False
        except OSError as error:
            if error.errno == errno.ENOBUFS:  # the answer was lost, and with it whether the pair is new
                self.undo.push(f"delete interface {self.name}", self._remove_unmarked)
            raise self._in_words(error) from error
        created()
        self.undo.push(f"delete interface {self.name}", self._remove)
        return True

    def _in_words(self, error: OSError) -> OSError | PluginError:
        """Return the error with the reference's sentence, where it has one, and what to do."""
        if error.errno == errno.EINVAL:
            return PluginError("failed to make veth pair: invalid argument", details=error.strerror or "")
        if error.errno == errno.EXFULL and self.bridge is not None:  # BR_MAX_PORTS
            return Exhausted(
                f'failed to connect "{self.name}" to bridge {self.bridge.name}: exchange full',
                details="a bridge has at most 1023 ports: end containers, or give the network another bridge",
            )
        return error

    def _host_end(self) -> str:
        return f"host end {self.name}" if self.bridge is None else f"port {self.name} of bridge {self.bridge.name}"

    def _remove(self) -> None:
        link = self.links.get(self.name)
        if link is not None:
            self.reaper.delete(link).wait(self.links)

    def _remove_unmarked(self) -> None:
        """Remove the pair unless it is of an earlier ADD, which has marked it."""
        link = self.links.get(self.name)
        if link is not None and not link.alias:
            self.reaper.delete(link).wait(self.links)

    def _adopt_or_remove(self, created: Callable[[], None]) -> None:
        """Keep the pair of an earlier ADD if it is complete, otherwise recreate it."""
        request, name = self.request, self.name
        outside = self.links.get(name)
        with links_in(request.netns) as links:
            inside = links.get(request.ifname)
        if outside is None:
            raise self._taken()
        if outside.alias not in {"", Attachment.of(request).label}:
            raise TryAgain(f"interface {name} belongs to {outside.alias!r}; a new container id gives another name")
        if inside is not None and (inside.peer, outside.peer) == (outside.index, inside.index):
            if self.bridge is not None and outside.master != self.bridge.index:
                self.links.set_master(outside, self.bridge)
            if not outside.is_up:
                self.links.set_up(outside)
            return
        self.reaper.delete(outside).wait(self.links)
        if not self._create(created):
            raise self._taken()

    def _taken(self) -> InvalidRequest:
        return InvalidRequest(
            f'container veth name ("{self.request.ifname}") peer provided ("{self.name}") already exists',
            details=f"found in {self.request.netns.path}; delete it or choose another CNI_IFNAME",
        )
