"""vrf: an interface in a routing domain of its own (plugin `vrf`), after another plugin in a list.

Owns: the keys of the plugin.
Refuses: work (see `verbs`).
"""

from typing import ClassVar

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.chained_plugin import ChainedConfig, ChainedPlugin
from nodeplug_net.vrf.verbs import Vrfs


class VrfPluginConfig(ChainedConfig):
    """`[plugins.vrf.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-vrf",), description="executables on CNI_PATH; add 'vrf' to take the reference plugin over"
    )


class Vrf(ChainedPlugin):
    """The plugin."""

    Config = VrfPluginConfig
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
        super().__init__(config, host, Vrfs(host.log))
