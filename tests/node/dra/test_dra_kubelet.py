"""When the kubelet that is acted out calls a DRA driver: one sentence for each of kubelet's rules."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.node.dra.acted_driver import ActedDriver, device, prepared
from tests.node.dra.objects import DRIVER, slice_of, wants

from nodeplug.pb import dra_health_v1alpha1_pb2 as health
from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2 as podresources
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing.dra import (
    DraKubelet,
    PrepareFailed,
    ResourceApi,
    Scheduler,
    UnprepareFailed,
    UnresolvableDevices,
)
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
Place = Callable[..., str]


@pytest.fixture
def driver(kubelet: DraKubelet) -> Iterator[ActedDriver]:
    with ActedDriver(kubelet.plugins_registry) as made:
        kubelet.until_registered(DRIVER)
        yield made


@pytest.fixture
def place(api: ResourceApi, scheduler: Scheduler, specs: Path) -> Place:
    """Make a claim, allocate it for pods, and write the CDI spec that a driver would write; return its uid."""
    api.create("resourceslices", slice_of(*({"name": f"d{number}"} for number in range(9)), name="devices"))

    def do(name: str, *pods: str) -> str:
        uid = str(scheduler.claim(name, wants())["metadata"]["uid"])
        for pod in pods or (name,):
            scheduler.place(pod, [name])
        write_spec(specs, uid)
        return uid

    return do


def write_spec(specs: Path, uid: str, *, env: str = "CARD=one", name: str = "") -> None:
    edits = {"env": [env], "deviceNodes": [{"path": "/dev/acme0"}], "hooks": [{"hookName": "createContainer"}]}
    devices = [{"name": name or f"{uid}-gpu", "containerEdits": edits}]
    document = {"cdiVersion": "0.5.0", "kind": "acme.example.com/gpu", "devices": devices}
    (specs / f"{name or uid}.json").write_text(json.dumps(document))


def test_a_container_gets_what_the_spec_of_its_claim_says(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    edits = kubelet.admit("one", ["one"])["main"]
    assert edits.env == {"CARD": "one"}
    assert list(edits.device_nodes) == ["/dev/acme0"]
    assert driver.calls == ["prepare one"]


def test_a_pod_whose_driver_is_not_registered_can_end(kubelet: DraKubelet, place: Place) -> None:
    place("one")
    with pytest.raises(PrepareFailed, match=r"DRA driver acme\.example\.com is not registered"):
        kubelet.admit("one", ["one"])
    kubelet.end("one")
    assert kubelet.prepared.claims == {}


def test_a_failure_of_one_claim_is_tried_again_and_the_pod_is_not_rejected(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    driver.answer = lambda _: pb.NodePrepareResourceResponse(error="2 free units, 8 wanted")
    with pytest.raises(PrepareFailed, match=r"FailedPrepareDynamicResources.*2 free units, 8 wanted"):
        kubelet.admit("one", ["one"])
    assert kubelet.pods == ["one"]
    driver.answer = prepared
    kubelet.until_admitted("one", ["one"])


def test_a_claim_that_is_missing_in_the_answer_fails_the_call(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    driver.answer = lambda _: None
    with pytest.raises(PrepareFailed, match="skipped 1 ResourceClaims"):
        kubelet.admit("one", ["one"])


def test_a_version_that_is_listed_and_not_served_fails_every_pod(kubelet: DraKubelet, place: Place) -> None:
    place("one")
    with ActedDriver(kubelet.plugins_registry, versions=["v1beta1.DRAPlugin", "v1.DRAPlugin"]):
        kubelet.until_registered(DRIVER)
        with pytest.raises(PrepareFailed, match="UNIMPLEMENTED"):
            kubelet.admit("one", ["one"])


def test_a_call_has_a_deadline(short_path: Path, api: ResourceApi, place: Place) -> None:
    from nodeplug.testing.dra import DraTimeouts  # noqa: PLC0415 - of this test alone

    place("one")
    answered = threading.Event()
    with DraKubelet(short_path / "k", api, [], timeouts=DraTimeouts(poll=0.02, call=0.2)) as kubelet:
        api.create("resourceslices", slice_of({"name": "d0"}, name="again"))
        with ActedDriver(kubelet.plugins_registry) as driver:
            driver.answer = lambda claim: prepared(claim) if answered.wait(20) else None
            kubelet.until_registered(DRIVER)
            with pytest.raises(PrepareFailed, match="DEADLINE_EXCEEDED"):
                kubelet.admit("one", ["one"])
            answered.set()


def test_pods_are_prepared_at_the_same_time(kubelet: DraKubelet, driver: ActedDriver, place: Place) -> None:
    both = threading.Barrier(2, timeout=60)

    def answer(claim: pb.Claim) -> pb.NodePrepareResourceResponse:
        both.wait()  # each waits for the other one's call
        return prepared(claim)

    driver.answer = answer
    for name in ("one", "two"):
        place(name)
    threads = [threading.Thread(target=kubelet.admit, args=(name, [name])) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(driver.calls) == ["prepare one", "prepare two"]


def test_claims_of_one_pod_come_in_one_call(kubelet: DraKubelet, driver: ActedDriver, place: Place) -> None:
    for name in ("one", "two"):
        place(name, "pod")
    kubelet.admit("pod", ["one", "two"])
    kubelet.end("pod")
    assert driver.calls == ["prepare one two", "unprepare one two"]


def test_two_pods_with_one_claim_are_one_prepare_and_one_unprepare_after_the_last(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("shared", "p1", "p2")
    kubelet.admit("p1", ["shared"])
    kubelet.admit("p2", ["shared"])
    kubelet.end("p1")
    assert driver.calls == ["prepare shared"]
    kubelet.end("p2")
    assert driver.calls == ["prepare shared", "unprepare shared"]


def test_a_container_that_is_created_anew_asks_no_driver(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    kubelet.admit("one", ["one"])
    kubelet.restart()
    kubelet.until_registered(DRIVER)
    assert kubelet.start_container("one").env == {"CARD": "one"}
    assert driver.calls == ["prepare one"]


def test_a_lost_spec_fails_the_next_container(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, specs: Path
) -> None:
    uid = place("one")
    kubelet.admit("one", ["one"])
    (specs / f"{uid}.json").unlink()
    with pytest.raises(UnresolvableDevices, match="unresolvable CDI devices acme"):
        kubelet.start_container("one")


def test_a_new_sandbox_prepares_again_only_after_a_restart_and_doubles_the_names(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    uid = place("one")
    kubelet.admit("one", ["one"])
    kubelet.new_sandbox("one")
    assert driver.calls == ["prepare one"]
    kubelet.restart()
    kubelet.until_registered(DRIVER)
    edits = kubelet.new_sandbox("one")["main"]
    assert driver.calls == ["prepare one", "prepare one"]
    assert edits.names == (f"acme.example.com/gpu={uid}-gpu",) * 2
    assert len(edits.hooks) == 2


def test_an_unprepare_that_fails_holds_the_pod(kubelet: DraKubelet, driver: ActedDriver, place: Place) -> None:
    place("one")
    kubelet.admit("one", ["one"])
    driver.refuse = "busy"
    with pytest.raises(UnprepareFailed, match="busy"):
        kubelet.end("one")
    assert kubelet.pods == ["one"]
    driver.refuse = ""
    kubelet.until_ended("one")
    assert kubelet.pods == []


def test_an_unprepare_needs_no_claim_and_no_api_server(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, api: ResourceApi, scheduler: Scheduler
) -> None:
    place("one")
    kubelet.admit("one", ["one"])
    scheduler.free("one")
    scheduler.delete("one")
    with api.failing("away"):
        kubelet.end("one")
    assert driver.calls == ["prepare one", "unprepare one"]


def test_without_an_api_server_no_pod_starts(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, api: ResourceApi
) -> None:
    place("one")
    with api.failing("away"), pytest.raises(PrepareFailed, match="failed to fetch ResourceClaim"):
        kubelet.admit("one", ["one"])
    assert driver.calls == []


def test_a_pod_for_which_a_claim_is_not_reserved_does_not_start(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one", "another")
    with pytest.raises(PrepareFailed, match="not allowed to use resource claim"):
        kubelet.admit("one", ["one"])


def test_a_new_claim_of_the_same_name_waits_until_the_old_one_is_unprepared(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, scheduler: Scheduler
) -> None:
    place("one", "old")
    kubelet.admit("old", ["one"])
    scheduler.free("old")
    scheduler.delete("one")
    place("one", "new")
    with pytest.raises(PrepareFailed, match="different UID"):
        kubelet.admit("new", ["one"])
    kubelet.end("old")
    kubelet.admit("new", ["one"])


def test_what_was_asked_before_a_restart_is_unprepared_after_it(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    driver.answer = lambda _: pb.NodePrepareResourceResponse(error="no")
    with pytest.raises(PrepareFailed):
        kubelet.admit("one", ["one"])
    kubelet.restart()
    kubelet.until_registered(DRIVER)
    kubelet.end("one")
    assert driver.calls == ["prepare one", "unprepare one"]


def test_claims_of_pods_that_went_while_kubelet_was_away_are_unprepared(
    kubelet: DraKubelet, driver: ActedDriver, place: Place
) -> None:
    place("one")
    kubelet.admit("one", ["one"])
    kubelet.stop()
    kubelet.forget("one")
    kubelet.start()
    kubelet.until_registered(DRIVER)
    kubelet.reconcile()
    assert driver.calls == ["prepare one", "unprepare one"]


def test_a_container_that_names_a_request_gets_its_devices_alone(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, specs: Path
) -> None:
    place("one")
    for name in ("a", "b"):
        write_spec(specs, "", env=f"{name}=1", name=name)
    driver.answer = lambda claim: pb.NodePrepareResourceResponse(
        devices=[device(claim, name, f"acme.example.com/gpu={name}", request=name) for name in ("a", "b")]
    )
    found = kubelet.admit("one", ["one"], {"left": ["one/a"], "both": ["one"]})
    assert [edits.env for edits in found.values()] == [{"a": "1"}, {"a": "1", "b": "1"}]


def test_podresources_lists_all_devices_for_each_container_and_adds_up_their_names(
    kubelet: DraKubelet, driver: ActedDriver, place: Place, specs: Path
) -> None:
    place("one")
    for name in ("a", "b"):
        write_spec(specs, "", name=name)
    driver.answer = lambda claim: pb.NodePrepareResourceResponse(
        devices=[device(claim, name, f"acme.example.com/gpu={name}", request=name, share=f"s{name}") for name in "ab"]
    )
    kubelet.admit("one", ["one"], {"left": ["one/a"]})
    socket = kubelet.root / "pod-resources" / "kubelet.sock"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = podresources_grpc.PodResourcesListerStub(channel)
        listed = stub.List(podresources.ListPodResourcesRequest(), timeout=60)
    claims = listed.pod_resources[0].containers[0].dynamic_resources
    assert [(one.claim_namespace, one.claim_name) for one in claims] == [("default", "one")]
    found = [(one.device_name, one.share_id, len(one.cdi_devices)) for one in claims[0].claim_resources]
    assert found == [("a", "sa", 1), ("b", "sb", 2)]


def told(state: Any, message: str, timeout: int = 0) -> health.NodeWatchResourcesResponse:
    found = health.NodeWatchResourcesResponse()
    one = found.devices.add(health=state, message=message, health_check_timeout_seconds=timeout)
    one.device.pool_name, one.device.device_name = "pool", "one"
    one.last_updated_time = int(time.time())
    return found


def test_health_is_in_the_status_of_a_container_by_its_first_cdi_name(kubelet: DraKubelet, place: Place) -> None:
    uid = place("one")
    with ActedDriver(kubelet.plugins_registry) as driver:
        driver.told = [told(health.UNHEALTHY, "xid 79: fallen off the bus")]
        kubelet.until_registered(DRIVER)
        kubelet.admit("one", ["one"])
        until(lambda: kubelet.resource_health("one")[0]["resources"][0]["health"] == "Unhealthy")
        resource = {
            "resourceID": f"acme.example.com/gpu={uid}-gpu",
            "health": "Unhealthy",
            "message": "xid 79: fallen off the bus",
        }
        assert kubelet.resource_health("one") == [{"name": "claim:one", "resources": [resource]}]


def test_health_that_nobody_repeats_is_unknown_after_its_time(kubelet: DraKubelet, place: Place) -> None:
    place("one")
    with ActedDriver(kubelet.plugins_registry) as driver:
        driver.told = [told(health.HEALTHY, "", timeout=1)]
        kubelet.until_registered(DRIVER)
        kubelet.admit("one", ["one"])
        until(lambda: kubelet.resource_health("one")[0]["resources"][0]["health"] == "Healthy")
        until(lambda: kubelet.resource_health("one")[0]["resources"][0]["health"] == "Unknown")


def test_a_stream_of_health_that_ends_is_opened_again(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry) as driver:
        driver.ended.set()
        until(lambda: kubelet.health.streams.get(DRIVER, 0) > 1)
