"""Which containers use which claim, as kubelet lists it: without UIDs, with all devices for each, some twice."""

from nodeplug.device.holders import Holder
from nodeplug.device.podresources import decode_list
from nodeplug.pb import podresources_v1_pb2 as pb


def dynamic(claim: str, namespace: str = "shop", devices: int = 1) -> pb.DynamicResource:
    listed = [
        pb.ClaimResource(driver_name="gpu.nodeplug.io", pool_name="p", device_name=f"d{n}") for n in range(devices)
    ]
    return pb.DynamicResource(claim_name=claim, claim_namespace=namespace, claim_resources=[*listed, *listed])


def pod(name: str, **containers: list[pb.DynamicResource]) -> pb.PodResources:
    made = [pb.ContainerResources(name=container, dynamic_resources=used) for container, used in containers.items()]
    return pb.PodResources(name=name, namespace="shop", containers=made)


def test_containers_of_several_pods_may_use_one_claim() -> None:
    pods = [
        pod("web-0", main=[dynamic("five", devices=2)], side=[dynamic("five")]),
        pod("web-1", main=[dynamic("five")]),
    ]
    listed = decode_list(pb.ListPodResourcesResponse(pod_resources=pods))
    assert listed.users == {
        ("shop", "five"): {
            Holder("shop", "web-0", "main"),
            Holder("shop", "web-0", "side"),
            Holder("shop", "web-1", "main"),
        }
    }
    assert listed.holdings == {}


def test_a_container_may_use_several_claims() -> None:
    listed = decode_list(pb.ListPodResourcesResponse(pod_resources=[pod("web-0", main=[dynamic("a"), dynamic("b")])]))
    assert listed.users.keys() == {("shop", "a"), ("shop", "b")}


def test_a_container_without_claims_uses_none() -> None:
    assert decode_list(pb.ListPodResourcesResponse(pod_resources=[pod("web-0", main=[])])).users == {}
