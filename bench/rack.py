"""A device plugin for the benchmark: eight devices, and a choice among them."""

from collections.abc import Sequence

from nodeplug import Claim, Device, DeviceClaim, DeviceId, DevicePrefer, Grant, Host, hookimpl


class Rack:
    """Prefers the devices that sort first."""

    def __init__(self, config: dict[str, object], host: Host) -> None:
        pass

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the one resource."""
        return [DeviceClaim("bench.nodeplug.io/rack")]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        """List the same devices each time."""
        return [Device(DeviceId(f"d{number}"), grant=Grant(env={"N": str(number)})) for number in range(8)]

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId]:
        """Choose."""
        return sorted(request.available)[: request.size]
