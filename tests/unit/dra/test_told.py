"""What is told of devices while things change: lists that come late, news that a slow stream has missed, old slices."""

import asyncio
import threading
from pathlib import Path

import pytest
from tests.unit.dra.prepared import MEM, Cards

from nodeplug import Device, DeviceList, InvalidRequest, NotFound, NotReady, PluginError, TryAgain, hookimpl
from nodeplug.config import DraSection, PluginSection, Supervisor
from nodeplug.contract.journal import Journal
from nodeplug.dra import driver as driver_module
from nodeplug.dra import drivers as drivers_module
from nodeplug.dra.claims import ClaimReference
from nodeplug.dra.drivers import Drivers
from nodeplug.dra.listing import Listing
from nodeplug.dra.server import News
from nodeplug.dra.values import Pool
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.kubeapi.access import Access


class Gone(Cards):
    """Says that there is nothing on this node, or cannot say what there is."""

    def __init__(self, why: PluginError) -> None:
        super().__init__()
        self.why = why

    @hookimpl
    def device_list(self, request: DeviceList) -> list[Device]:
        raise self.why


class Asked:
    """Kubelet has just been asked who holds what."""

    def soon(self) -> None:
        """Nothing is to be done."""

    def unknown_since(self, moment: float) -> str:
        return ""


def drivers(folder: Path, registry: Registry) -> Drivers:
    return Drivers(
        registry,
        Runner(),
        Supervisor(root=folder).paths,
        "node-1",
        DraSection(),
        None,
        folder / "cdi",
        0.01,
        Journal(folder / "journal", "boot"),
        lambda _: (),
        Asked(),
        lambda _: None,
    )


def test_a_former_instances_word_that_there_is_nothing_counts_no_more_during_an_exchange() -> None:
    registry = Registry()
    registry.load("cards", Gone(NotFound("no cards")), "d")

    async def story() -> None:
        listing = Listing(registry.route("device", MEM), Runner(), 60, lambda: None)
        listing.devices = before = (Cards().listed[0],)
        asked = asyncio.create_task(listing.run())
        await asyncio.sleep(0)
        listing.hold()  # while its thread is under way
        await asyncio.sleep(0.2)
        asked.cancel()
        assert (listing.devices, listing.absent) == (before, "")

    asyncio.run(story())


def test_news_that_came_while_a_stream_was_written_to_wakes_it_at_once() -> None:
    async def story() -> None:
        news = News()
        seen = news.count
        news.tell()
        async with asyncio.timeout(30):
            await news.wait(seen, 60)

    asyncio.run(story())


def test_slices_of_an_earlier_daemon_that_no_list_confirms_are_emptied_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "UNCONFIRMED", 0.1)
    registry = Registry()
    registry.load("cards", Gone(NotReady("the driver hangs")), "d")

    async def story() -> None:
        made = drivers(tmp_path, registry)
        made.serve("cards", [registry.route("device", MEM)])
        driver = made._drivers["cards"]
        ((name, first),) = (driver.wanted or {}).items()
        assert first is None  # they stay as they are
        await asyncio.sleep(0.2)
        assert driver.wanted == {name: Pool(name, MEM, ())}
        made.publication.news.clear()
        (listing,) = (one for one, _ in driver._listings.values())
        assert driver._unconfirmed(listing)
        assert not driver._unconfirmed(listing)  # slices are looked at once for that
        await made.end()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["cards%20uid-1.json", "cards%20uid-1.damaged"])
def test_nothing_is_given_away_while_a_record_cannot_be_read(tmp_path: Path, name: str) -> None:
    registry = Registry()
    registry.load("cards", Cards(), "d")
    folder = tmp_path / "journal"
    folder.mkdir()
    text = '{"version": 1, "key": "cards uid-1", "phase": "prepared", "boot_id": "", "request": {}, "data": {}}'
    (folder / name).write_text(text)

    async def story() -> None:
        made = drivers(tmp_path, registry)
        await made.recover()
        made.serve("cards", [registry.route("device", MEM)])
        with pytest.raises(NotReady, match=f"{name} cannot be read, and nobody knows what its claim holds"):
            await made._settled("cards", MEM)
        await made.end()

    asyncio.run(story())


def test_a_claim_that_is_wanted_before_the_api_server_was_looked_for_waits_until_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()

    def find(_: Path | None) -> Access:
        going.wait(30)
        raise InvalidRequest("there is no kubeconfig")

    monkeypatch.setattr(drivers_module, "find", find)
    reference = ClaimReference("uid-1", "default", "one")

    async def story() -> None:
        made = drivers(tmp_path, Registry())
        running = asyncio.create_task(made.run())
        monkeypatch.setattr(drivers_module, "FIRST_LOOK", 0.05)
        with pytest.raises(TryAgain, match="the API server has not been asked yet"):
            await made._claim(reference)
        monkeypatch.setattr(drivers_module, "FIRST_LOOK", 30.0)
        wanted = asyncio.create_task(made._claim(reference))
        await asyncio.sleep(0.1)
        going.set()
        with pytest.raises(TryAgain, match="there is no kubeconfig"):
            await wanted
        running.cancel()
        await made.end()

    asyncio.run(story())


def test_a_driver_that_has_ended_does_not_serve_again_although_a_turn_was_under_way(short_path: Path) -> None:
    registry = Registry()
    registry.load("cards", Cards(), "d").section = PluginSection(serve="dra")

    async def story() -> None:
        made = drivers(short_path, registry)
        made.expect("cards")
        turn = asyncio.create_task(made.keep())
        await asyncio.sleep(0)
        await made.end()
        await turn
        await made.keep()

    asyncio.run(story())
    kubelet = Supervisor(root=short_path).paths.plugins_registry.parent
    assert not [*kubelet.rglob("*.sock")]


def test_slices_stay_as_they_are_once_the_daemon_ends(tmp_path: Path) -> None:
    registry = Registry()
    registry.load("cards", Cards(), "d")

    async def story() -> None:
        made = drivers(tmp_path, registry)
        made.serve("cards", [registry.route("device", MEM)])
        assert made._wanted() != {"cards.nodeplug.io": None}
        await made.end()
        assert made._wanted() == {"cards.nodeplug.io": None}

    asyncio.run(story())
