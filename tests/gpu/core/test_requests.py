"""What kubelet, or whoever speaks on its socket, is answered by the plugin in the real daemon."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import AdmissionError, Kubelet, ScratchNode

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
CONFIG = """
[plugins.gpu.config]
driver = "simulated"
poll = "50ms"
simulated = [{ memory = "4Gi", uuid = "GPU-aaaa" }, { memory = "7Gi", uuid = "GPU-bbbb" }]
[[plugins.gpu.config.resources]]
sharing = "memory"
withhold = "never"
"""


async def refused(kubelet: Kubelet, ids: Sequence[str], resource: str = MEM) -> tuple[str, str]:
    endpoint = kubelet.resources[resource].endpoint
    assert endpoint is not None
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    try:
        await endpoint.stub.Allocate(request)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


def of(kubelet: Kubelet, count: int, *, healthy: bool = True) -> list[str]:
    """Return the ids of the card with so many units."""
    table = kubelet.resources[MEM].table
    assert table is not None
    cards: dict[str, list[str]] = {}
    for name in sorted(table.healthy if healthy else table.unhealthy):
        cards.setdefault(name.partition("-")[0], []).append(name)
    return next(ids for ids in cards.values() if len(ids) == count)


def test_every_bad_request_gets_a_plain_error(short_path: Path) -> None:
    node = ScratchNode(short_path, CONFIG, fork=True)

    async def story() -> None:
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            node.start()
            await kubelet.until_allocatable(MEM, 11)
            await kubelet.until_allocatable(COUNT, 2)
            small, large = of(kubelet, 4), of(kubelet, 7)
            with pytest.raises(AdmissionError) as caught:
                await kubelet.admit("pod", {MEM: 10})
            numbers = f"10 units of {MEM} wanted on one card, the largest free card has 7: GPU-bbbb"
            assert numbers in str(caught.value)
            assert "ResourceExhausted" in str(caught.value)
            for ids, code, words in (
                ([*small, large[0]], "RESOURCE_EXHAUSTED", f"5 units of {MEM} wanted on one card, kubelet chose units"),
                ([], "INVALID_ARGUMENT", "names no device"),
                (["GPU-aaaa_-_0"], "NOT_FOUND", "is not among the 11 devices"),
                ([small[0], small[0]], "INVALID_ARGUMENT", "twice"),
                ([f"{small[0]}{number}" for number in range(20_000)], "NOT_FOUND", "is not among the 11 devices"),
                ([small[0]] * 20_000, "INVALID_ARGUMENT", "twice"),
            ):
                found = await refused(kubelet, ids)
                assert found[0] == code, found
                assert words in found[1]
            assert (
                "request aliyun.com/gpu-mem instead"
                in (await refused(kubelet, list(kubelet.resources[COUNT].reported)[:1], COUNT))[1]
            )
            file = next(path for path in node.root.rglob("gpu") if "run" in path.parts) / "simulated-faults.json"
            file.write_text(json.dumps({"cards": {"0": {"lost": True}}}))
            await kubelet.until_allocatable(MEM, 7)
            code, words = await refused(kubelet, small[:1])
            assert (code, "the GPU is lost" in words) == ("UNAVAILABLE", True)
            assert await refused(kubelet, large) == ("OK", "")

    try:
        asyncio.run(story())
    finally:
        node.stop()
