"""ptp: containers that have a link of their own to the host (plugin `ptp`).

Owns: the keys of the plugin, and which function serves which verb.
Refuses: work. ADD is in `add`, DEL and GC in `delete`, CHECK and STATUS in `check`.
"""

from typing import ClassVar, Final

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.paired_plugin import PairedConfig, PairedPlugin, Verbs
from nodeplug_net.ptp import add, check, delete

_VERBS: Final = Verbs(
    attach=add.attach,
    detach=delete.detach,
    check=check.check,
    collect=delete.collect,
    status=check.status,
    mend=check.mend,
    inside=check.inside,
    host_end=check.host_end,
)


class PtpConfig(PairedConfig):
    """`[plugins.ptp.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-ptp",), description="executables on CNI_PATH; add 'ptp' to take the reference plugin over"
    )


class Ptp(PairedPlugin):
    """The plugin."""

    Config = PtpConfig
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/addresses"},
        "cni": {
            "type": "nodeplug-ptp",
            "ipMasq": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]},
        },
    }

    def __init__(self, config: PtpConfig, host: Host) -> None:
        super().__init__(config, host, _VERBS)
