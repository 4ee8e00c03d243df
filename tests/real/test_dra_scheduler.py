"""What the real scheduler makes of our slices: never more than there is, and in our order.

There is no kubelet: a claim is allocated before its pod is bound to a node, and nobody has to run it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.real.conftest import control_plane
from tests.real.consumers import ControlPlane, PrivateNode, pod
from tests.real.consumers.claims_of_devices import CLAIMS, SLICES, claim, put_class

from nodeplug import Counters, Device, DeviceId, Part, ResourceName
from nodeplug.dra.pools import Order, pool_of
from nodeplug.dra.slices import Effect, slices_of
from nodeplug.dra.stored import changes, difference
from nodeplug.testing.dra import Pending, ResourceApi, Scheduler
from nodeplug.testing.waiting import until

DRIVER, NODE, CLASS = "gpu.nodeplug.io", "node-1", "gpu"
MEMORY = ResourceName("example.com/gpu-mem")
GI = 1 << 30
EVERYTHING = [{"operator": "Exists"}]
"""What a pod or a claim tolerates: of a node without kubelet, or of a device, all."""


NO_CANARY = f"!('canary' in device.attributes['{DRIVER}'])"


@dataclass
class Cluster:
    """A cluster of one node, whose slices a test writes.

    Attributes:
        plane: its control plane.
        node: the uid of the Node; slices of another one are collected as garbage.
        published: how often there were other slices.
        wanted: the slices that were written last.
    """

    plane: ControlPlane
    node: str
    published: int = 0
    wanted: list[dict[str, Any]] = field(default_factory=list)

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The slices that there are."""
        found: list[dict[str, Any]] = self.plane.call("GET", SLICES)["items"]
        return found

    def publish(
        self,
        devices: Sequence[Device],
        *,
        taken: Sequence[str] = (),
        held: Sequence[str] = (),
        order: Order = "listed",
        taint: Effect = "NoSchedule",
    ) -> None:
        """Bring the slices in line, and return when the scheduler has them: it gives away a device that is new."""
        self.published += 1
        canary = Device(DeviceId(f"canary-{self.published}"), attributes={"canary": self.published})
        known = {*map(DeviceId, taken)}, {*map(DeviceId, held)}
        made = pool_of(NODE, MEMORY, [*devices, canary], *known, order=order)
        self.wanted = slices_of(DRIVER, NODE, self.node, made, 1, taint)
        todo = changes(self.wanted, self.stored)
        for one in todo.create:
            self.plane.call("POST", SLICES, one)
        for one in todo.replace:
            self.plane.call("PUT", f"{SLICES}/{one['metadata']['name']}", one)
        for name in todo.delete:
            self.plane.call("DELETE", f"{SLICES}/{name}")
        number = f"device.attributes['{DRIVER}'].canary == {self.published}"
        assert self.gets(canary.id, cel=f"!({NO_CANARY}) && {number}") == canary.id

    def ask(self, name: str, memory: str = "", cel: str = NO_CANARY, **more: Any) -> None:
        """Create a pod with a claim of a device, or of some of its memory."""
        exactly: dict[str, Any] = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": cel}}], **more}
        exactly |= {"capacity": {"requests": {"memory": memory}}} if memory else {}
        self.plane.call(
            *("POST", CLAIMS),
            {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        )
        made = pod(name, "")
        made["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "tolerations": EVERYTHING}
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        self.plane.schedule(made)

    def end(self, name: str) -> None:
        """Delete a pod and its claim, and return when what it had is free."""
        self.plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
        self.plane.call("DELETE", f"{CLAIMS}/{name}")
        until(lambda: name not in [one["metadata"]["name"] for one in self.plane.call("GET", CLAIMS)["items"]])

    def result(self, name: str) -> str:
        """Return which device a claim has, and how much of it; empty while it has none."""
        allocation = claim(self.plane, name).get("status", {}).get("allocation")
        if not allocation:
            return ""
        (got,) = allocation["devices"]["results"]
        return " ".join([got["device"], *got.get("consumedCapacity", {}).values()])

    def gets(self, name: str, memory: str = "", **more: Any) -> str:
        """Ask, and return what the claim gets."""
        self.ask(name, memory, **more)
        until(lambda: self.result(name), 30, lambda: self.plane.unplaced(name))
        return self.result(name)

    def waits(self, name: str, memory: str = "", **more: Any) -> bool:
        """Ask, and return whether the scheduler says that there is nothing for the claim."""
        self.ask(name, memory, **more)
        until(lambda: self.result(name) or self.plane.unplaced(name))
        return not self.result(name)


def units(card: str, count: int, ill: Sequence[int] = ()) -> list[Device]:
    part, attributes = Part(DeviceId(card), {"memory": GI}), {"model": f"model of {card}"}
    return [
        Device(DeviceId(f"{card}-{n}"), healthy=n not in ill, reason="lost", part=part, attributes=attributes)
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def plane(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[ControlPlane]:
    with control_plane(make_private_node, consumer("kubernetes")) as made:
        made.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        has = {"cpu": "64", "memory": "64Gi", "pods": "110"}
        status = {"status": {"capacity": has, "allocatable": has}}
        made.call("PATCH", f"/api/v1/nodes/{NODE}/status", status, content="application/merge-patch+json")
        put_class(made, CLASS, DRIVER)
        yield made


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    """The cluster without claims and slices."""
    yield Cluster(plane, plane.call("GET", f"/api/v1/nodes/{NODE}")["metadata"]["uid"])
    for name in plane.scheduled():
        plane.call("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds=0")
    for one in plane.call("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{one['metadata']['name']}"
        plane.call("DELETE", path)
    until(lambda: not plane.call("GET", CLAIMS)["items"])
    for one in plane.call("GET", SLICES)["items"]:
        plane.call("DELETE", f"{SLICES}/{one['metadata']['name']}")


def test_claims_fill_the_first_card_and_the_rest_waits(cluster: Cluster) -> None:
    cluster.publish([*units("b", 8), *units("a", 4)])
    assert cluster.gets("one", "5Gi") == "b 5Gi"
    assert cluster.gets("two", "2500Mi") == "b 3Gi"
    assert cluster.waits("large", "5Gi")
    assert cluster.gets("whole") == "a 4Gi"
    assert cluster.waits("late", "1Gi")


def test_claims_are_spread_if_the_card_with_most_free_is_published_first(cluster: Cluster) -> None:
    cards = [*units("a", 4), *units("b", 4)]
    cluster.publish(cards, order="most-free-first")
    assert cluster.gets("one", "1Gi") == "a 1Gi"
    cluster.publish(cards, order="most-free-first", held=["a-0"])
    assert cluster.gets("two", "1Gi") == "b 1Gi"


def test_a_card_with_one_part_gives_it_to_one_claim(cluster: Cluster) -> None:
    cluster.publish(units("card", 1))
    assert cluster.waits("large", "1025Mi")
    assert cluster.gets("one", "1Mi") == "card 1Gi"
    assert cluster.waits("late", "1Mi")


@pytest.mark.parametrize("taint", ["NoSchedule", "None"])
def test_a_card_without_a_usable_part_gives_nothing_even_to_those_that_tolerate_it(
    cluster: Cluster, taint: Effect
) -> None:
    cluster.publish(units("card", 4, range(4)), taint=taint)
    assert cluster.waits("some", "1Mi", tolerations=EVERYTHING)
    assert cluster.waits("any", tolerations=EVERYTHING)
    cluster.publish(units("card", 4, range(3)), taint=taint)
    until(lambda: "card 1Gi" in {cluster.result("some"), cluster.result("any")})


@pytest.mark.soak
def test_a_claim_on_an_unhealthy_part_takes_nothing_from_those_that_are_free(cluster: Cluster) -> None:
    cluster.publish(units("card", 4))
    assert cluster.gets("ill", "2Gi") == "card 2Gi"
    cluster.publish(units("card", 4, range(2)), held=["card-0", "card-1"])
    assert cluster.gets("well", "2Gi") == "card 2Gi"
    assert cluster.waits("late", "1Gi")


def test_what_containers_of_device_plugins_hold_is_given_to_no_claim(cluster: Cluster) -> None:
    cluster.publish([Device(DeviceId("whole")), *units("card", 2)], taken=["whole", "card-0"], taint="None")
    assert cluster.gets("one", "1Gi") == "card 1Gi"
    assert cluster.waits("more", "1Gi")
    assert cluster.waits("any")


def test_claims_choose_by_what_devices_say_of_themselves(cluster: Cluster) -> None:
    own, all_drivers = f"device.attributes['{DRIVER}']", "device.attributes['resource.kubernetes.io']"
    size = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0"
    cards = [Device(DeviceId(f"GPU-{n}"), attributes={"uuid": f"GPU-{n}"}, numa_nodes=(n,)) for n in range(2)]
    cluster.publish([*cards, Device(DeviceId("large"), capacity={"memory": 80 * GI}), *units("card", 4)])
    assert cluster.gets("a", cel=f"has({all_drivers}.numaNode) && {all_drivers}.numaNode == 1").startswith("gpu-1-")
    assert cluster.gets("b", cel=f"has({own}.uuid) && {own}.uuid == 'GPU-0'").startswith("gpu-0-")
    assert cluster.gets("c", cel=f"has(device.capacity['{DRIVER}'].memory) && {size}") == "large"
    assert cluster.gets("d", "1Gi", cel=f"has({own}.model) && {own}.model == 'model of card'") == "card 1Gi"


@pytest.mark.soak
def test_devices_of_the_second_slice_come_after_those_of_the_first(cluster: Cluster) -> None:
    ill = range(64)
    cluster.publish([Device(DeviceId(f"d{n}"), healthy=n not in ill, reason="lost") for n in range(66)])
    assert cluster.gets("one") == "d64"
    assert cluster.gets("two") == "d65"
    assert cluster.waits("late")


def cut(card: str) -> list[Device]:
    """A card that is given away whole, in parts, or by its seven instances."""
    has, takes = {"memory": 8 * GI, "slices": 7}, {"memory": GI, "slices": 1}
    every, some, part = (
        Counters(card, has, has),
        Counters(card, has, takes),
        Part(DeviceId(f"{card}-shared"), {"memory": GI}),
    )
    shared = [DeviceId(f"{card}-shared-{n}") for n in range(8)]
    return [
        Device(DeviceId(card), counters=every, attributes={"type": "card"}),
        *(Device(one, part=part, counters=every, attributes={"type": "shared"}) for one in shared),
        *(Device(DeviceId(f"{card}-{n}"), counters=some, attributes={"type": "mig"}) for n in range(7)),
    ]


def of_type(kind: str) -> str:
    return f"{NO_CANARY} && device.attributes['{DRIVER}'].type == '{kind}'"


@pytest.mark.soak
def test_a_card_that_is_given_whole_keeps_its_instances_from_claims_and_they_keep_it(cluster: Cluster) -> None:
    cluster.publish(cut("card"))
    assert not difference(cluster.wanted, cluster.stored)
    assert cluster.gets("whole", cel=of_type("card")) == "card"
    assert cluster.waits("first", cel=of_type("mig"))
    assert cluster.waits("some", "1Gi", cel=of_type("shared"))
    cluster.end("some")
    cluster.end("whole")
    until(lambda: cluster.result("first") == "card-0", 30, lambda: cluster.plane.unplaced("first"))
    assert cluster.gets("second", cel=of_type("mig")) == "card-1"
    assert cluster.waits("late", cel=of_type("card"))
    cluster.end("first")
    assert cluster.waits("later", "1Gi", cel=of_type("shared"))
    cluster.end("later")
    cluster.end("second")
    until(lambda: cluster.result("late") == "card", 30, lambda: cluster.plane.unplaced("late"))


def test_parts_of_a_card_consume_its_counters_once(cluster: Cluster) -> None:
    cluster.publish([*cut("a"), *cut("b")])
    assert cluster.gets("some", "3Gi", cel=of_type("shared")) == "a-shared 3Gi"
    assert cluster.gets("more", "5Gi", cel=of_type("shared")) == "a-shared 5Gi"
    assert cluster.gets("instance", cel=of_type("mig")) == "b-0"
    assert cluster.waits("whole", cel=of_type("card"))


def acted_out(cluster: Cluster, wanted: dict[str, str]) -> dict[str, str]:
    """Return what the scheduler that is acted out gives to claims of so much memory, with the slices of the cluster."""
    found = {}
    with ResourceApi(NODE) as api:
        for one in cluster.plane.call("GET", SLICES)["items"]:
            api.create("resourceslices", {"metadata": {"name": one["metadata"]["name"]}, "spec": one["spec"]})
        scheduler = Scheduler(api)
        scheduler.add_class(CLASS, f'device.driver == "{DRIVER}"')
        for name, memory in wanted.items():
            exactly: dict[str, Any] = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": NO_CANARY}}]}
            exactly |= {"capacity": {"requests": {"memory": memory}}} if memory else {}
            scheduler.claim(name, {"name": "gpu", "exactly": exactly})
            try:
                (placed,) = scheduler.place(name, [name])
            except Pending:
                found[name] = ""
            else:
                (got,) = placed["status"]["allocation"]["devices"]["results"]
                found[name] = " ".join([got["device"], *got.get("consumedCapacity", {}).values()])
    return found


def test_the_scheduler_that_is_acted_out_gives_the_same(cluster: Cluster) -> None:
    ill = Device(DeviceId("ill-0"), healthy=False, reason="lost", part=Part(DeviceId("ill"), {"memory": GI}))
    cluster.publish([ill, *units("b", 8), *units("a", 4), *units("c", 2, ill=[0]), *cut("d")])
    amounts = ["5Gi", "2500Mi", "5Gi", "1", "", "3Gi", "1Gi", "1Gi", "9Gi", "2Gi"]
    wanted = {f"claim-{number}": amount for number, amount in enumerate(amounts)}
    for name, amount in wanted.items():
        cluster.waits(name, amount)
    found = {name: cluster.result(name) for name in wanted}
    assert acted_out(cluster, wanted) == found
    assert {*found.values()} > {"", "b 5Gi", "b 3Gi"}
