"""bandwidth: the rate of a container's traffic is limited (plugin `bandwidth`), after another plugin in a list.

Owns: the keys of the plugin.
Refuses: work (see `verbs`).
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.bandwidth.verbs import Bandwidth as Verbs
from nodeplug_net.chained_plugin import ChainedConfig, ChainedPlugin
from nodeplug_net.level.events import Interest


class BandwidthConfig(ChainedConfig):
    """`[plugins.bandwidth.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-bandwidth",),
        description="executables on CNI_PATH; add 'bandwidth' to take the reference plugin over",
    )
    repair_containers: bool = Field(
        False, description="restore at once the limits that somebody removed; else it is only told"
    )


class Bandwidth(ChainedPlugin):
    """The plugin."""

    Config = BandwidthConfig
    example: ClassVar[Example] = {
        "beside": {"bridge": {"config": {"data_dir": "{scratch}/addresses"}}},
        "cni": {
            "cniVersion": "1.0.0",
            "name": "example",
            "plugins": [
                {
                    "type": "nodeplug-bridge",
                    "bridge": "example0",
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
                },
                {
                    "type": "nodeplug-bandwidth",
                    "ingressRate": 100_000_000,
                    "ingressBurst": 1_000_000,
                    "egressRate": 100_000_000,
                    "egressBurst": 1_000_000,
                },
            ],
        },
    }

    def __init__(self, config: BandwidthConfig, host: Host) -> None:
        verbs = Verbs(host.log)

        def interest() -> Interest:
            aliases = verbs.aliases()
            return replace(verbs.containers.interest(), pairs=aliases, shaping=bool(aliases))

        super().__init__(config, host, verbs, interest)
