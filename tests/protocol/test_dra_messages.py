"""Kubelet's messages of Dynamic Resource Allocation as bytes: those that its own Go types have written (v0.36.3)."""

import pytest
from google.protobuf.message import Message

from nodeplug.pb import dra_health_v1alpha1_pb2 as health
from nodeplug.pb import dra_v1_pb2 as dra

UID = "11d1f9a8-8d1f-4b5e-9a3c-6a1d1f0c2b7e"
CLAIM = dra.Claim(namespace="team", uid=UID, name="pod-gpu-x7k2q")
DEVICE = dra.Device(
    request_names=["gpu"],
    pool_name="node-1/example.com/gpu-mem",
    device_name="gpu-0",
    cdi_device_ids=[f"nodeplug.io/claim={UID}-gpu"],
    share_id="8a2f1c7e-0b6d-4a3f-8e21-5d9c7f3b1a60",
)
SICK = health.DeviceHealth(
    device=health.DeviceIdentifier(pool_name=DEVICE.pool_name, device_name=DEVICE.device_name),
    health=health.UNHEALTHY,
    last_updated_time=1790000000,
    health_check_timeout_seconds=60,
    message="XID 79",
)
MESSAGES: dict[str, tuple[Message, str]] = {
    "a claim to prepare": (
        dra.NodePrepareResourcesRequest(claims=[CLAIM]),
        (
            "0a3b0a047465616d122431316431663961382d386431662d346235652d396133632d3661316431663063326237651a0d706f642d6770752d"
            "78376b3271"
        ),
    ),
    "a claim that is prepared": (
        dra.NodePrepareResourcesResponse(claims={UID: dra.NodePrepareResourceResponse(devices=[DEVICE])}),
        (
            "0ab6010a2431316431663961382d386431662d346235652d396133632d366131643166306332623765128d010a8a010a03677075121a6e6f"
            "64652d312f6578616d706c652e636f6d2f6770752d6d656d1a056770752d30223a6e6f6465706c75672e696f2f636c61696d3d3131643166"
            "3961382d386431662d346235652d396133632d3661316431663063326237652d6770752a2438613266316337652d306236642d346133662d"
            "386532312d356439633766336231613630"
        ),
    ),
    "a claim that cannot be": (
        dra.NodePrepareResourcesResponse(claims={UID: dra.NodePrepareResourceResponse(error="2 free units, 8 wanted")}),
        (
            "0a400a2431316431663961382d386431662d346235652d396133632d3661316431663063326237651218121632206672656520756e697473"
            "2c20382077616e746564"
        ),
    ),
    "a claim that is given up": (
        dra.NodeUnprepareResourcesResponse(claims={UID: dra.NodeUnprepareResourceResponse()}),
        "0a280a2431316431663961382d386431662d346235652d396133632d3661316431663063326237651200",
    ),
    "an unhealthy device": (
        health.NodeWatchResourcesResponse(devices=[SICK]),
        (
            "0a370a230a1a6e6f64652d312f6578616d706c652e636f6d2f6770752d6d656d12056770752d3010021880f7c4d506203c2a065849442037"
            "39"
        ),
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_message_has_the_bytes_of_kubelets_own_types(what: str) -> None:
    message, golden = MESSAGES[what]
    assert message.SerializeToString(deterministic=True).hex() == golden
    assert type(message).FromString(bytes.fromhex(golden)) == message


def test_the_services_are_those_that_kubelet_calls() -> None:
    """Which the version at registration does not say: that is `v1.DRAPlugin`."""
    assert dra.DESCRIPTOR.services_by_name["DRAPlugin"].full_name == "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    assert health.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name == "v1alpha1.DRAResourceHealth"


def test_a_device_that_is_not_shared_has_no_share() -> None:
    assert not dra.Device(pool_name="a", device_name="b").HasField("share_id")
