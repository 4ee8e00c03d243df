"""Slices are written, and what is in the way of one driver is in nobody else's, and asked about seldom."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.node.dra.objects import NODE

from nodeplug import Counters, Device, DeviceId, Part, ResourceName
from nodeplug.dra.names import driver_name
from nodeplug.dra.pools import pool_of
from nodeplug.dra.publication import Publication
from nodeplug.dra.values import Pool
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.testing.acted_api.store import Object, Where
from nodeplug.testing.dra import Refused, ResourceApi

CARD = [Device(DeviceId(f"card-{n}"), part=Part(DeviceId("card"), {"memory": 1 << 30})) for n in range(4)]


CUT = [
    Device(DeviceId("whole"), counters=Counters("card", {"slices": 7}, {"slices": 7})),
    Device(DeviceId("instance"), counters=Counters("card", {"slices": 7}, {"slices": 1})),
    Device(DeviceId("other")),
]
"""A card, an instance of it, and another card."""


class Meddling(ResourceApi):
    """A server with an admission webhook: it changes, or refuses, what is stored."""

    def __init__(self, meddle: Callable[[dict[str, Any], bool], None]) -> None:
        super().__init__(NODE)
        self.meddle = meddle
        self.rehearsed = False

    def create(self, resource: str, made: Mapping[str, Any], namespace: str = "", *, rehearsed: bool = False) -> Object:
        self.rehearsed = rehearsed
        return super().create(resource, made, namespace, rehearsed=rehearsed)

    def _whole(self, where: Where, sent: Mapping[str, Any], before: Object | None) -> Object:
        changed = json.loads(json.dumps(sent))
        self.meddle(changed, self.rehearsed)
        return super()._whole(where, changed, before)


def pool(resource: str, listed: Sequence[Device] = CARD) -> Pool:
    return pool_of(NODE, ResourceName(resource), listed)


@contextmanager
def published(
    api: ResourceApi, folder: Path, *sections: str, listed: Sequence[Device] = CARD
) -> Iterator[Callable[..., Any]]:
    """Give what publishes a card for each section while a coroutine runs."""
    (folder / "kubeconfig").write_text(api.kubeconfig)
    made = {one: pool(f"example.com/{one}", listed) for one in sections}
    pools = {driver_name(one): {found.name: found} for one, found in made.items()}

    async def during(story: Callable[[Publication], Any]) -> None:
        publication = Publication(NODE, "NoSchedule", lambda: pools)
        async with Client(Credentials(find(folder / "kubeconfig"))) as client:
            running = asyncio.create_task(publication.run(client))
            publication.news.set()
            try:
                async with asyncio.timeout(60):
                    await story(publication)
            finally:
                running.cancel()

    yield lambda story: asyncio.run(during(story))


def writes(api: ResourceApi) -> int:
    return sum(one.startswith(("PUT", "POST")) for one in api.asked)


def test_a_server_that_stores_something_else_is_not_written_to_for_ever(tmp_path: Path) -> None:
    def add(made: dict[str, Any], _: bool) -> None:
        for device in made["spec"]["devices"]:
            device["attributes"]["added"] = {"string": "by a webhook"}

    async def story(publication: Publication) -> None:
        while "stores something else" not in publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)
        before = writes(api)
        publication.news.set()
        await asyncio.sleep(1)
        assert writes(api) == before

    with Meddling(add) as api, published(api, tmp_path, "a") as during:
        during(story)


def test_a_driver_whose_slices_are_refused_holds_up_no_other(tmp_path: Path) -> None:
    def refuse(made: dict[str, Any], _: bool) -> None:
        if made["spec"]["driver"] == "a.nodeplug.io":
            raise Refused(422, "Invalid", "a policy says no")

    async def story(publication: Publication) -> None:
        while not api.slices("b.nodeplug.io") or not publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)
        assert "a policy says no" in publication.trouble_of("a.nodeplug.io")

    with Meddling(refuse) as api, published(api, tmp_path, "a", "b") as during:
        during(story)


def test_a_card_that_is_stored_as_a_whole_although_the_trial_was_right_is_taken_back_and_not_tried_at_once(
    tmp_path: Path,
) -> None:
    def drop(made: dict[str, Any], rehearsed: bool) -> None:
        if not rehearsed:  # another server of the cluster, which lacks the gate
            for device in made["spec"]["devices"]:
                device.pop("allowMultipleAllocations", None)
                for capacity in device["capacity"].values():
                    capacity.pop("requestPolicy", None)

    async def story(publication: Publication) -> None:
        while "DRAConsumableCapacity" not in publication.trouble_of("a.nodeplug.io") or api.slices():
            await asyncio.sleep(0.02)
        before = writes(api)
        publication.news.set()
        await asyncio.sleep(1)
        assert (writes(api), api.slices()) == (before, [])

    with Meddling(drop) as api, published(api, tmp_path, "a") as during:
        during(story)


def test_a_cluster_that_does_not_share_gets_no_card_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug.dra.publication._UNSHARED", 0.5)

    async def story(publication: Publication) -> None:
        while "DRAConsumableCapacity" not in publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)
        assert api.slices() == []
        api.lacks = frozenset()
        while not api.slices() or publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)

    with ResourceApi(NODE, lacks={"DRAConsumableCapacity"}) as api, published(api, tmp_path, "a") as during:
        during(story)


def test_what_is_wanted_is_written_once(tmp_path: Path) -> None:
    stored: list[bool] = []

    def note(_: dict[str, Any], rehearsed: bool) -> None:
        stored.append(not rehearsed)

    async def story(_: Publication) -> None:
        while not api.slices():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)

    with Meddling(note) as api, published(api, tmp_path, "a") as during:
        during(story)
    assert stored == [False, True]  # a trial, and the slice


def names(api: ResourceApi) -> list[str]:
    return [device["name"] for one in api.slices() for device in one["spec"].get("devices") or ()]


def test_devices_that_overlap_are_written_with_their_counters(tmp_path: Path) -> None:
    async def story(publication: Publication) -> None:
        while len(api.slices()) < 2:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert writes(api) == 3  # a trial, and two slices
        assert publication.trouble_of("a.nodeplug.io") == ""

    with ResourceApi(NODE) as api, published(api, tmp_path, "a", listed=CUT) as during:
        during(story)
    assert [len(one["spec"].get("sharedCounters", ())) for one in api.slices()] == [0, 1]


def test_a_cluster_that_does_not_count_gets_no_device_that_overlaps_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug.dra.publication._UNSHARED", 1.0)

    async def story(publication: Publication) -> None:
        while names(api) != ["other"] or "DRAPartitionableDevices" not in publication.trouble_of("a.nodeplug.io"):
            assert not {*names(api)} - {"other"}
            await asyncio.sleep(0.02)
        asked = writes(api)
        while writes(api) < asked + 2:  # tried again, twice, and nothing else is written
            assert names(api) == ["other"]
            await asyncio.sleep(0.02)
        api.lacks = frozenset()
        while len(names(api)) < 3 or publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)

    lacks = {"DRAPartitionableDevices"}
    with ResourceApi(NODE, lacks=lacks) as api, published(api, tmp_path, "a", listed=CUT) as during:
        during(story)


def test_devices_that_are_stored_without_counters_although_the_trial_was_right_are_taken_back(tmp_path: Path) -> None:
    def drop(made: dict[str, Any], rehearsed: bool) -> None:
        if not rehearsed:  # another server of the cluster, which lacks the gate
            made["spec"].pop("sharedCounters", None)
            for device in made["spec"].get("devices") or ():
                device.pop("consumesCounters", None)

    async def story(publication: Publication) -> None:
        while names(api) != ["other"] or "DRAPartitionableDevices" not in publication.trouble_of("a.nodeplug.io"):
            await asyncio.sleep(0.02)

    with Meddling(drop) as api, published(api, tmp_path, "a", listed=CUT) as during:
        during(story)
