"""vrf: an interface in a routing domain of its own (plugin `vrf`), after another plugin in a list.

Owns: the hooks: claims, and which verb does what.
Refuses: work (see `verbs`).
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniResult,
    CniStatus,
    Example,
    Host,
    hookimpl,
)
from nodeplug.fields import CniExecutable
from nodeplug_net.netlink.messages import get_link_by_name
from nodeplug_net.undo import kernel_errors
from nodeplug_net.vrf.verbs import Vrfs


class VrfPluginConfig(BaseModel):
    """`[plugins.vrf.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-vrf",), description="executables on CNI_PATH; add 'vrf' to take the reference plugin over"
    )


class Vrf:
    """The plugin."""

    Config = VrfPluginConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "beside": {"bridge": {"config": {"data_dir": "{scratch}/addresses"}}},
        "cni": {
            "cniVersion": "1.0.0",
            "name": "example",
            "plugins": [
                {
                    "type": "nodeplug-bridge",
                    "bridge": "example0",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
                },
                {"type": "nodeplug-vrf", "vrfname": "blue"},
            ],
        },
    }

    def __init__(self, config: VrfPluginConfig, host: Host) -> None:
        self._names = config.names
        self._verbs = Vrfs(host.log)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Encode the message that every call needs."""
        get_link_by_name()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Put the interface into the VRF; the previous result is passed on unchanged."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Take the interface out of the VRF, which ends when nothing is in it."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Look whether the interface is in the VRF."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise InvalidRequest if a key is wrong."""
        self._verbs.status(request)
