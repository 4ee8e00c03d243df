"""The hooks of plugins whose attachments are pairs with an end on the host: bridge and ptp.

Owns: claims, the keys that both have, what their verbs share, which function serves which verb, and how a network or a
container is restored.
Refuses: work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniResult, CniStatus, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.level.host_ends import HostEnd
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.pairs import Pairs
from nodeplug_net.level.reconciler import IN_STATUS, REPAIR, REPAIR_CONTAINERS, Reconciler, is_container
from nodeplug_net.needs import Networks
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.sockets import NftSockets
from nodeplug_net.undo import kernel_errors
from nodeplug_net.warm import warm_up


class PairedConfig(BaseModel):
    """The section of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = ()
    data_dir: Path = Field(
        DATA_DIR,
        description="where IPAM type host-local reserves addresses unless a network's ipam.dataDir says otherwise",
    )
    repair: bool = REPAIR
    repair_containers: bool = REPAIR_CONTAINERS
    status_containers: bool = IN_STATUS


@dataclass(frozen=True, slots=True)
class Verbs:
    """What a plugin of this family does; each raises PluginError, or OSError when the kernel refuses.

    Attributes:
        attach: serves ADD; a failure leaves nothing behind.
        detach: serves DEL: removes everything that can be removed, then reports the first failure.
        check: serves CHECK: names every difference.
        collect: serves GC.
        status: serves STATUS; restores what `mend` does.
        mend: gives a network back what an ADD would.
        inside: names what of the container's side is not as the result says.
        host_end: says what an attachment needs on its host.
    """

    attach: Callable[[CniAdd, Dataplane], CniResult]
    detach: Callable[[CniDel, Dataplane], None]
    check: Callable[[CniCheck, Dataplane], None]
    collect: Callable[[CniGc, Dataplane], None]
    status: Callable[[CniStatus, Dataplane], None]
    mend: Callable[[CniStatus, Dataplane], None]
    inside: Callable[[CniCheck], list[str]]
    host_end: Callable[[CniCheck], HostEnd]


class PairedPlugin(KeptPlugin):
    """A plugin."""

    isolation = "thread"

    def __init__(self, config: PairedConfig, host: Host, verbs: Verbs) -> None:
        self._names = config.names
        self._verbs = verbs
        reaper = Reaper()
        addressing = Addressing(Ipam(host, config.data_dir), host)
        pairs = Pairs(verbs.inside, expects=verbs.host_end)
        networks = Networks(host, pairs=pairs)
        self._plane = Dataplane(addressing, reaper, NftSockets(reaper), host.log, networks)
        self._level = Reconciler(
            host,
            config.repair,
            networks.look,
            self._restore,
            networks.interest,
            config.repair_containers,
            pairs,
            config.status_containers,
        )

    @hookimpl
    def start(self) -> None:
        """Encode the messages that every ADD needs, and release addresses that an earlier boot left."""
        warm_up()
        self._plane.addressing.recover()
        self._plane.networks.recover()
        self._plane.tidy()
        self._level.start()

    @hookimpl
    def stop(self) -> None:
        """Stop to observe, and close idle sockets."""
        super().stop()
        self._plane.nft.close()

    def _restore(self, thing: str) -> None:
        networks = self._plane.networks
        if is_container(thing):
            with networks.pairs.made_again(thing) as addition:
                self._verbs.attach(addition, self._plane)
        else:
            with networks.asked(thing) as request:
                self._verbs.mend(request, self._plane)

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container."""
        with kernel_errors():
            return self._verbs.attach(request, self._plane)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Detach a container."""
        with kernel_errors():
            self._verbs.detach(request, self._plane)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare an attachment with its result."""
        with kernel_errors():
            self._verbs.check(request, self._plane)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Remove what belongs to no valid attachment."""
        with kernel_errors():
            self._verbs.collect(request, self._plane)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._level.refuse_fight(request.network, request.host_netns)
            self._verbs.status(request, self._plane)
            self._level.refuse_losses(request.network, request.host_netns)
