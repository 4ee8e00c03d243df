"""host-local: addresses out of ranges, reserved in a folder of this node (plugin `host-local`).

Owns: the hooks of `ipam`: another bridge (the reference's, or a third party's) delegates its IPAM here.
Refuses: interfaces. The result of an IPAM plugin has only addresses, routes and dns (CNI SPEC, section 4).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Claim, CniAdd, CniCheck, CniClaim, CniDel, CniGc, CniResult, CniStatus, Example, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.ipam.allocation import Ipam


class HostLocalConfig(BaseModel):
    """`[plugins.host-local.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-host-local",),
        description="executables on CNI_PATH; add 'host-local' to take the reference plugin over",
    )
    data_dir: Path = Field(
        DATA_DIR,
        description="where addresses are reserved unless a network's ipam.dataDir says otherwise",
    )


class HostLocal:
    """The plugin."""

    Config = HostLocalConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/addresses"},
        "cni": {"type": "nodeplug-host-local", "ipam": {"subnet": "10.88.0.0/24"}},
    }

    def __init__(self, config: HostLocalConfig, host: Host) -> None:
        self._names = config.names
        self._ipam = Ipam(host, config.data_dir)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name, uses_netns=False) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Release what an earlier boot left reserved."""
        self._ipam.recover()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Reserve one address out of each range set."""
        return self._ipam.allocate(request).result

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Release the attachment's addresses."""
        self._ipam.release(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Confirm the attachment's addresses."""
        self._ipam.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Release addresses of attachments that are gone."""
        self._ipam.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if a range set is used up."""
        self._ipam.status(request)
