"""What the verbs of one bridge plugin share.

Owns: the plugin's IPAM, reaper, nf_tables sockets and log, made once.
Refuses: state about containers: that is in the kernel and in the address folders.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nodeplug import CniRequest
from nodeplug_net.addressing import Addressing
from nodeplug_net.masquerade import Masquerade
from nodeplug_net.reaper import Reaper
from nodeplug_net.sockets import NftSockets


@dataclass(frozen=True, slots=True)
class Dataplane:
    """The shared parts. Any thread may use them."""

    addressing: Addressing
    reaper: Reaper
    nft: NftSockets
    log: logging.LoggerAdapter[logging.Logger]

    @contextmanager
    def masquerade(self, request: CniRequest) -> Iterator[Masquerade]:
        """Open the masqueraded addresses of the request's host namespace, which the calling thread is in."""
        with self.nft.lent(request.host_netns) as netlink:
            yield Masquerade(netlink)
