"""sbr: packets leave by the interface whose address they have (plugin `sbr`), after another plugin in a list.

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
from nodeplug_net.sbr.verbs import SourceRouting
from nodeplug_net.undo import kernel_errors


class SbrConfig(BaseModel):
    """`[plugins.sbr.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-sbr",), description="executables on CNI_PATH; add 'sbr' to take the reference plugin over"
    )


class Sbr:
    """The plugin."""

    Config = SbrConfig
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
                {"type": "nodeplug-sbr"},
            ],
        },
    }

    def __init__(self, config: SbrConfig, host: Host) -> None:
        self._names = config.names
        self._verbs = SourceRouting(host.log)

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
        """Give each address of the interface a table of its own; the previous result is passed on unchanged."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Delete the rules of the interface's addresses."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare rules and tables with what is asked for."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise InvalidRequest if a key is wrong."""
        self._verbs.status(request)
