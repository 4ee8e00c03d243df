"""What `nodeplug status -o json` says of devices."""

from typing import Any

from nodeplug import Device, DeviceId, Part, ResourceName
from nodeplug.device.resource import ResourceStatus
from nodeplug.observe import status


def units(*devices: Device) -> list[dict[str, Any]]:
    listed = ResourceStatus(ResourceName("example.com/a"), "a", "", devices, registered=True, listed=True)
    (row,) = status.resources([listed], {}, {})
    return list(row["units"])


def test_a_unit_shows_what_its_device_is_and_of_what_it_is_a_part() -> None:
    whole = DeviceId("card-0")
    device = Device(
        DeviceId("card-0-1"),
        attributes={"model": "T4", "index": 0},
        capacity={"memory": 16 << 30},
        part=Part(whole, {"memory": 1 << 30}),
    )
    (unit,) = units(device)
    assert unit == {
        "id": "card-0-1",
        "healthy": True,
        "reason": "",
        "holder": "",
        "attributes": {"model": "T4", "index": 0},
        "capacity": {"memory": 16 << 30},
        "part": {"of": "card-0", "amount": {"memory": 1 << 30}},
    }


def test_a_plain_device_says_no_more_than_its_health() -> None:
    (unit,) = units(Device(DeviceId("a")))
    assert unit.keys() == {"id", "healthy", "reason", "holder"}
