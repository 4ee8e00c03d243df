"""bridge: containers on a Linux bridge (plugin `bridge`).

Owns: the keys of the plugin, and which function serves which verb.
Refuses: work. ADD is in `add`, DEL and GC in `delete`, CHECK and STATUS in `check`.
"""

from typing import ClassVar, Final

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.bridge import add, check, delete, mend
from nodeplug_net.paired_plugin import PairedConfig, PairedPlugin, Verbs

_VERBS: Final = Verbs(
    attach=add.attach,
    detach=delete.detach,
    check=check.check,
    collect=delete.collect,
    status=check.status,
    mend=mend.mend,
    inside=check.inside,
    host_end=check.host_end,
)


class BridgeConfig(PairedConfig):
    """`[plugins.bridge.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-bridge",), description="executables on CNI_PATH; add 'bridge' to take the reference plugin over"
    )


class Bridge(PairedPlugin):
    """The plugin."""

    Config = BridgeConfig
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/addresses"},
        "cni": {
            "type": "nodeplug-bridge",
            "bridge": "example0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]},
        },
    }

    def __init__(self, config: BridgeConfig, host: Host) -> None:
        super().__init__(config, host, _VERBS)
