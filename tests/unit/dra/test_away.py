"""A plugin that does not run gets no new claims, and nobody is evicted for it."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.dra.prepared import DRIVER, MEM, POOL, Cards, Prepared, result

from nodeplug import NotReady
from nodeplug.dra.listing import Listing
from nodeplug.dra.pools import without_unusable
from nodeplug.dra.server import health_of
from nodeplug.dra.slices import slices_of
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.pb import dra_health_v1alpha1_pb2 as health_pb

WHY = "its process ended: SIGKILL"


def test_its_devices_are_kept_from_new_claims_whatever_ill_ones_mean_for_pods(tmp_path: Path) -> None:
    pool = replace(Prepared(tmp_path).pools()[POOL], away=WHY)
    (made,) = slices_of(DRIVER, "node-1", "u-1", pool, 1, "NoExecute")
    taints = [one["taints"] for one in made["spec"]["devices"]]
    taint = {"key": "nodeplug.io/away", "value": "its-process-ended-SIGKILL", "effect": "NoSchedule"}
    assert taints == [[taint], [taint]]


def test_a_cluster_without_taints_is_offered_none_of_them(tmp_path: Path) -> None:
    pool = replace(Prepared(tmp_path).pools()[POOL], away=WHY)
    assert without_unusable(pool).devices == ()


def test_their_health_is_unknown_and_not_bad(tmp_path: Path) -> None:
    pool = replace(Prepared(tmp_path).pools()[POOL], away=WHY)
    found = health_of([pool], 1).devices
    assert [(one.health, one.message) for one in found] == [(health_pb.UNKNOWN, WHY)] * 2


def test_a_claim_for_one_of_them_waits_with_the_reason(tmp_path: Path) -> None:
    driver = Prepared(tmp_path)
    driver.put("one", result("a", "1Gi"))
    pools = {POOL: replace(driver.pools()[POOL], away=WHY)}
    driver.preparation.pools = lambda: pools
    with pytest.raises(NotReady, match=f"pool {POOL} cannot serve: {WHY}"):
        asyncio.run(driver.prepare("one"))


def test_the_last_list_stays_while_it_is_away_and_counts_again_with_the_next(tmp_path: Path) -> None:
    registry = Registry()
    registry.load("cards", Cards(), "d")
    told: list[str] = []

    async def story() -> None:
        listing = Listing(registry.route("device", MEM), Runner(), 0.01, lambda: told.append(listing.away))
        running = asyncio.create_task(listing.run())
        while listing.devices is None:
            await asyncio.sleep(0)
        before = listing.devices
        listing.withdraw(WHY)
        assert (listing.devices, listing.away) == (before, WHY)
        listing.take_over(registry.route("device", MEM))
        while listing.away:
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(story())
    assert told == ["", WHY, ""]
