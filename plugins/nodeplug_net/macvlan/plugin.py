"""macvlan: containers with a hardware address of their own on an interface of the host (plugin `macvlan`).

Owns: the hooks: claims, and which module serves which verb.
Refuses: work.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Claim, CniAdd, CniCheck, CniClaim, CniDel, CniGc, CniResult, CniStatus, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.inner_link import InnerLinks
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.macvlan import verbs
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import kernel_errors
from nodeplug_net.warm import warm_up


class MacvlanConfig(BaseModel):
    """`[plugins.macvlan.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-macvlan",), description="executables on CNI_PATH; add 'macvlan' to take the reference plugin over"
    )
    data_dir: Path = Field(
        DATA_DIR,
        description="where IPAM type host-local reserves addresses unless a network's ipam.dataDir says otherwise",
    )


class Macvlan:
    """The plugin."""

    Config = MacvlanConfig
    isolation = "thread"

    def __init__(self, config: MacvlanConfig, host: Host) -> None:
        self._names = config.names
        addressing = Addressing(Ipam(host, config.data_dir), host)
        taken = 'failed to rename macvlan to "{}": file exists'
        self._links = InnerLinks(verbs.KIND, taken, addressing, Reaper(), host.log)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Encode the messages that every ADD needs, and release addresses that an earlier boot left."""
        warm_up()
        self._links.addressing.recover()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container."""
        with kernel_errors():
            return verbs.attach(request, self._links)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Detach a container."""
        with kernel_errors():
            self._links.detach(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare an attachment with its result."""
        with kernel_errors():
            verbs.check(request, self._links)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Release addresses of attachments that are gone."""
        with kernel_errors():
            self._links.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            verbs.status(request, self._links)
