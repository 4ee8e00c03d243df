"""vlan: containers in a VLAN of an interface of the host (plugin `vlan`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.vlan.verbs import KIND, VlanAddressing, Vlans


class VlanConfig(InnerConfig):
    """`[plugins.vlan.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-vlan",), description="executables on CNI_PATH; add 'vlan' to take the reference plugin over"
    )


class Vlan(InnerPlugin):
    """The plugin."""

    Config = VlanConfig

    def __init__(self, config: VlanConfig, host: Host) -> None:
        addressing = VlanAddressing(Ipam(host, config.data_dir), host)
        taken = 'failed to rename vlan to "{}": file exists'
        super().__init__(config, host, Vlans(KIND, taken, addressing, Reaper(), host.log))
