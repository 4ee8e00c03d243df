"""host-device: an interface of the host in a container (plugin `host-device`).

Owns: the keys of the plugin.
Refuses: work.
"""

from pydantic import Field

from nodeplug import Host
from nodeplug.fields import CniExecutable
from nodeplug_net.host_device.records import Records
from nodeplug_net.host_device.verbs import HostDevices
from nodeplug_net.inner_plugin import InnerConfig, InnerPlugin
from nodeplug_net.ipam.addressing import Addressing
from nodeplug_net.ipam.allocation import Ipam


class HostDeviceConfig(InnerConfig):
    """`[plugins.host-device.config]`."""

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-host-device",),
        description="executables on CNI_PATH; add 'host-device' to take the reference plugin over",
    )


class HostDevice(InnerPlugin):
    """The plugin."""

    Config = HostDeviceConfig

    def __init__(self, config: HostDeviceConfig, host: Host) -> None:
        addressing = Addressing(Ipam(host, config.data_dir), host)
        super().__init__(config, host, HostDevices(addressing, Records(host), host.log))
