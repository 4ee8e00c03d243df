"""The smallest useful device plugin: /dev/fuse for sixteen containers at a time."""

from nodeplug import Device, DeviceClaim, DeviceId, DeviceNode, Grant, Host, hookimpl


class Fuse:
    def __init__(self, config: object, host: Host) -> None:
        self.log = host.log

    @hookimpl
    def claims(self) -> list[DeviceClaim]:
        return [DeviceClaim("example.com/fuse")]

    @hookimpl
    def device_list(self) -> list[Device]:
        grant = Grant(nodes=(DeviceNode("/dev/fuse"),))
        return [Device(DeviceId(f"fuse-{number}"), grant=grant) for number in range(16)]
