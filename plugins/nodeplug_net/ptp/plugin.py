"""ptp: containers that have a link of their own to the host (plugin `ptp`).

Owns: the hooks: claims, and which module serves which verb.
Refuses: work. ADD is in `add`, DEL and GC in `delete`, CHECK and STATUS in `check`.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniResult,
    CniStatus,
    Example,
    Host,
    hookimpl,
)
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.dataplane import Dataplane
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.pairs import Pairs
from nodeplug_net.level.reconciler import IN_STATUS, REPAIR, REPAIR_CONTAINERS, Reconciler, is_container
from nodeplug_net.needs import Networks
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.nftables.sockets import NftSockets
from nodeplug_net.ptp import add, check, delete
from nodeplug_net.undo import kernel_errors
from nodeplug_net.warm import warm_up


class PtpConfig(BaseModel):
    """`[plugins.ptp.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-ptp",), description="executables on CNI_PATH; add 'ptp' to take the reference plugin over"
    )
    data_dir: Path = Field(
        DATA_DIR,
        description="where IPAM type host-local reserves addresses unless a network's ipam.dataDir says otherwise",
    )
    repair: bool = REPAIR
    repair_containers: bool = REPAIR_CONTAINERS
    status_containers: bool = IN_STATUS


class Ptp(KeptPlugin):
    """The plugin."""

    Config = PtpConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/addresses"},
        "cni": {
            "type": "nodeplug-ptp",
            "ipMasq": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]},
        },
    }

    def __init__(self, config: PtpConfig, host: Host) -> None:
        self._names = config.names
        reaper = Reaper()
        addressing = Addressing(Ipam(host, config.data_dir), host)
        pairs = Pairs(check.inside, expects=check.host_end)
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
                add.attach(addition, self._plane)
        else:
            with networks.asked(thing) as request:
                check.mend(request, self._plane)

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container."""
        with kernel_errors():
            return add.attach(request, self._plane)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Detach a container."""
        with kernel_errors():
            delete.detach(request, self._plane)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare an attachment with its result."""
        with kernel_errors():
            check.check(request, self._plane)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Remove what belongs to no valid attachment."""
        with kernel_errors():
            delete.collect(request, self._plane)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._level.refuse_fight(request.network, request.host_netns)
            check.status(request, self._plane)
            self._level.refuse_losses(request.network, request.host_netns)
