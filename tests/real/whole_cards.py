"""Other plugins for cards, as NVIDIA's is to kubelet: the ids are the cards' UUIDs, or replicas of them."""

import os
from collections.abc import Sequence

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceList,
    Grant,
    Host,
    ResourceName,
    hookimpl,
)

RESOURCE = ResourceName("nvidia.com/gpu")


class WholeCards:
    """The plugin."""

    def __init__(self, config: object, host: Host) -> None:
        """Need nothing."""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the resource alone."""
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:
        """List the cards that the test names."""
        return [Device(DeviceId(one)) for one in os.environ["CARDS"].split(",")]

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Name the cards to the container."""
        return Grant(env={"NVIDIA_VISIBLE_DEVICES": ",".join(request.ids)})


class SharedCards(WholeCards):
    """The same with two replicas of each card."""

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:
        """List two of each of the cards that the test names for that."""
        cards = os.environ["SHARED_CARDS"].split(",")
        return [Device(DeviceId(f"{one}::{number}")) for one in cards for number in range(2)]

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        """Name the cards to the container."""
        return Grant(env={"NVIDIA_VISIBLE_DEVICES": ",".join(one.partition("::")[0] for one in request.ids)})
