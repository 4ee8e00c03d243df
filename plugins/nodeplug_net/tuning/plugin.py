"""tuning: settings of a container's interface and of its namespace (plugin `tuning`), after another plugin in a list.

Owns: the keys of the plugin.
Refuses: work (see `verbs`).
"""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from nodeplug import Example, Host
from nodeplug.fields import CniExecutable
from nodeplug_net.chained_plugin import ChainedConfig, ChainedPlugin
from nodeplug_net.level.events import Interest
from nodeplug_net.tuning.verbs import Tuning as Verbs


class TuningConfig(ChainedConfig):
    """`[plugins.tuning.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-tuning",), description="executables on CNI_PATH; add 'tuning' to take the reference plugin over"
    )
    allowlist: Path = Field(
        Path("/etc/cni/tuning/allowlist.conf"),
        description="regular expressions, one a line, of the sysctls that may be set; without such a file all",
    )
    data_dir: Path = Field(
        Path("/run/cni/tuning"),
        description="where it is kept what interfaces were, unless a network's dataDir says otherwise",
    )
    repair_containers: bool = Field(
        False, description="restore within a second what somebody changed of it; else it is only told"
    )


class Tuning(ChainedPlugin):
    """The plugin."""

    Config = TuningConfig
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/tuning"},
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
                {"type": "nodeplug-tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
            ],
        },
    }

    def __init__(self, config: TuningConfig, host: Host) -> None:
        verbs = Verbs(config.allowlist, config.data_dir, host.log)

        super().__init__(
            config, host, verbs, lambda: Interest(containers=verbs.containers.concerned, changed=verbs.changed)
        )
