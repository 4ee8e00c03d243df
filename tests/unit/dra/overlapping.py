"""A card that is given away whole, or cut in ways that overlap: what a plugin lists of it."""

from nodeplug import Counters, Device, DeviceId, Part

GI = 1 << 30
ALL = {"memory": 8 * GI, "slices": 7}
SMALL = {"memory": GI, "slices": 1}


def whole(card: str = "card") -> Device:
    return Device(DeviceId(card), counters=Counters(card, ALL, ALL))


def instances(card: str = "card", count: int = 7) -> list[Device]:
    return [Device(DeviceId(f"{card}-mig-{n}"), counters=Counters(card, ALL, SMALL)) for n in range(count)]


def parts(of: str = "card", count: int = 8) -> list[Device]:
    """The whole card, shared by memory, under some name."""
    part, counters = Part(DeviceId(of), {"memory": GI}), Counters("card", ALL, ALL)
    return [Device(DeviceId(f"{of}-{n}"), part=part, counters=counters) for n in range(count)]
