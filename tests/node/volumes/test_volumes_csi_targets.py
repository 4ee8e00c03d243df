"""Targets that the CSI front makes and removes: only by the request that works on them."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from nodeplug import VolumeId, VolumePublish
from nodeplug.csi import volume
from nodeplug.hosting.call import Call
from nodeplug.volumes.compose import Steps

pytestmark = pytest.mark.node
DRIVER = "acme/disk"


def test_a_target_is_not_made_while_an_earlier_request_works_on_it(node: Any, area: Path) -> None:
    """The earlier one may be about to remove it."""
    target = area / "mount"
    held, let_go = threading.Event(), threading.Event()
    seen: list[bool] = []
    wanted = VolumePublish(
        driver=DRIVER, volume_id=VolumeId("v"), target_path=str(target), access_mode="SINGLE_NODE_WRITER"
    )

    def hold(steps: Steps) -> None:
        with steps.locks.held("target", str(target), patience=0):
            held.set()
            let_go.wait(60)

    async def scenario() -> None:
        volumes = node.service().volumes
        route = node.registry.route("volume", DRIVER)
        calls = [Call("Node", f"volume:{DRIVER}", whole=True) for _ in range(2)]
        first = asyncio.create_task(volumes.run(route, calls[0], hold))
        while not held.is_set():
            await asyncio.sleep(0.01)
        second = asyncio.create_task(volumes.run(route, calls[1], lambda steps: volume.publish(steps, wanted)))
        while not calls[1].key:  # it waits for the target
            await asyncio.sleep(0.01)
        seen.append(target.exists())
        let_go.set()
        await first
        await second
        seen.append(target.exists())

    asyncio.run(scenario())
    assert seen == [False, True]
