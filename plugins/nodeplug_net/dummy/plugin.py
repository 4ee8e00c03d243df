"""dummy: addresses that a container has without a network (plugin `dummy`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.dummy.verbs import KIND, Dummies
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.netlink.reaper import Reaper


class DummyConfig(InnerConfig):
    """`[plugins.dummy.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-dummy",), description="executables on CNI_PATH; add 'dummy' to take the reference plugin over"
    )


class Dummy(InnerPlugin):
    """The plugin."""

    Config = DummyConfig

    def __init__(self, config: DummyConfig, host: Host) -> None:
        addressing = Addressing(Ipam(host, config.data_dir), host)
        taken = "failed to create dummy: file exists"
        super().__init__(config, host, Dummies(KIND, taken, addressing, Reaper(), host.log))
