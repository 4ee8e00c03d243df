"""ipvlan: containers on an interface of the host, with its hardware address (plugin `ipvlan`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.ipvlan.verbs import KIND, Ipvlans
from nodeplug_net.netlink.reaper import Reaper


class IpvlanConfig(InnerConfig):
    """`[plugins.ipvlan.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-ipvlan",), description="executables on CNI_PATH; add 'ipvlan' to take the reference plugin over"
    )


class Ipvlan(InnerPlugin):
    """The plugin."""

    Config = IpvlanConfig

    def __init__(self, config: IpvlanConfig, host: Host) -> None:
        addressing = Addressing(Ipam(host, config.data_dir), host)
        taken = 'failed to rename ipvlan to "{}": file exists'
        super().__init__(config, host, Ipvlans(KIND, taken, addressing, Reaper(), host.log))
