"""sbr: packets leave by the interface whose address they have (plugin `sbr`), after another plugin in a list.

Owns: the keys of the plugin.
Refuses: work (see `verbs`).
"""

from typing import ClassVar

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.chained_plugin import ChainedConfig, ChainedPlugin
from nodeplug_net.sbr.verbs import SourceRouting


class SbrConfig(ChainedConfig):
    """`[plugins.sbr.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-sbr",), description="executables on CNI_PATH; add 'sbr' to take the reference plugin over"
    )


class Sbr(ChainedPlugin):
    """The plugin."""

    Config = SbrConfig
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
        super().__init__(config, host, SourceRouting(host.log))
