"""tap: an interface of the container whose frames a program reads and writes, such as a virtual machine (plugin `tap`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.tap.verbs import KIND, Taps


class TapConfig(InnerConfig):
    """`[plugins.tap.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-tap",), description="executables on CNI_PATH; add 'tap' to take the reference plugin over"
    )


class Tap(InnerPlugin):
    """The plugin."""

    Config = TapConfig

    def __init__(self, config: TapConfig, host: Host) -> None:
        addressing = Addressing(Ipam(host, config.data_dir), host)
        taken = 'failed to rename tap to "{}": file exists'
        super().__init__(config, host, Taps(KIND, taken, addressing, Reaper(), host.log))
