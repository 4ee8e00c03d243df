"""The verbs of dummy: addresses that a container has without a network.

Owns: that there are addresses, and the message that makes the interface.
Refuses: the order of the steps (see `inner_link`).

Source: plugins/main/dummy of the CNI plugins, whose sentences these are.
"""

from typing import Final

from nodeplug import CniAdd, CniCheck, CniRequest, CniResult, CniStatus, InvalidRequest
from nodeplug_net.comparison import refuse
from nodeplug_net.inner_attachment import differences
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.interface_config import DelegationConf
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink.connection import Request
from nodeplug_net.netlink.link_messages import create_link
from nodeplug_net.netlink.links import Links, links_in

KIND: Final = "dummy"


class Dummies(InnerLinks):
    """The verbs of dummy."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind.

        Raises:
            PluginError: IPAM has no address, or the interface's name is taken.
            OSError: the kernel refuses.
        """

        def create(inner: Links, name: str) -> None:
            what = f"create interface {request.ifname} in {request.netns.path}"
            with creating("failed to create dummy: {}"):
                inner.netlink.ask(Request(create_link(KIND, name), what))

        # It leads nowhere: nobody can be asked who has an address.
        return self.make(request, _ipam(request), create, waits_for_duplicates=False)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what of the container's interface is not as the result says.

        Raises:
            PluginError: what it needs is not there, or the configuration is wrong.
            OSError: the kernel refuses.
        """
        with links_in(request.netns) as inner:
            return list(differences(request, inner, inner.get(request.ifname), KIND))

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the kernel refuses.
        """
        ipam = _ipam(request)
        refuse(request, self.differences(request))
        self.addressing.check(request, ipam)

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: IPAM has no address.
            InvalidRequest: there is no IPAM.
        """
        self.addressing.status(request, _ipam(request))


def _ipam(request: CniRequest) -> str:
    ipam = request.parse(DelegationConf).ipam.type
    if not ipam:
        raise InvalidRequest("dummy interface requires an IPAM configuration", details="its addresses are all it has")
    return ipam
