"""macvlan: containers with a hardware address of their own on an interface of the host (plugin `macvlan`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.macvlan.verbs import KIND, Macvlans
from nodeplug_net.netlink.reaper import Reaper


class MacvlanConfig(InnerConfig):
    """`[plugins.macvlan.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-macvlan",), description="executables on CNI_PATH; add 'macvlan' to take the reference plugin over"
    )


class Macvlan(InnerPlugin):
    """The plugin."""

    Config = MacvlanConfig

    def __init__(self, config: MacvlanConfig, host: Host) -> None:
        addressing = Addressing(Ipam(host, config.data_dir), host)
        taken = 'failed to rename macvlan to "{}": file exists'
        super().__init__(config, host, Macvlans(KIND, taken, addressing, Reaper(), host.log))
