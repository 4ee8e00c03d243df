"""The looks at the CSINode: what each driver is told, and what is told where it cannot be read."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from tests.unit.kubeapi.scripted import Answer, Scripted, refuse, respond

from nodeplug.csi.csi_node import CsiNode

if TYPE_CHECKING:
    from nodeplug.csi.served import Served

NAME = "disk.acme"
MISSING = refuse(404, "NotFound")
NODE = respond(200, {"metadata": {"name": "node-1"}})


@dataclass
class Driver:
    """What was told to a driver."""

    registered: bool = True
    told: list[str] = field(default_factory=list)

    def looked(self, absent: str) -> None:
        self.told.append(absent)


def csi_node(*names: str) -> bytes:
    return respond(200, {"spec": {"drivers": [{"name": name} for name in names]}})


def look(driver: Driver, *answers: Answer, times: int = 1) -> tuple[CsiNode, list[str]]:
    """Look at a server with these answers; return the one who looked, and what it asked for."""
    looking = CsiNode(lambda: {NAME: cast("Served", driver)}, "node-1", None, 1.0)

    async def go() -> list[str]:
        async with Scripted(list(answers)) as server, server.client() as client:
            for _ in range(times):
                await looking.look(client)
            return [one.line.rpartition(" ")[0] for one in server.asked]

    return looking, asyncio.run(go())


def test_a_look_is_one_request() -> None:
    driver = Driver()
    looking, asked = look(driver, csi_node("other.acme", NAME))
    assert (asked, driver.told, looking.trouble) == (
        ["GET /apis/storage.k8s.io/v1/csinodes/node-1"],
        [""],
        "",
    )


@pytest.mark.parametrize(
    "answers",
    [[csi_node("other.acme")], [csi_node()], [respond(200, {"spec": {"drivers": None}})], [MISSING, NODE]],
    ids=["another driver", "no driver", "null", "no CSINode"],
)
def test_a_driver_that_the_cluster_does_not_know_is_told_so(answers: list[bytes]) -> None:
    driver = Driver()
    looking, _ = look(driver, *answers)
    assert driver.told == ["the CSINode node-1 does not list it, so that pods wait for it"]
    assert looking.trouble == ""


def test_where_the_cluster_has_no_such_node_no_driver_is_blamed() -> None:
    """Kubelet would be refused a registration, and without one it unmounts nothing."""
    driver = Driver()
    looking, _ = look(driver, MISSING, MISSING)
    assert driver.told == []
    assert "no node of this name; look at node_name under [supervisor]" in looking.trouble


@pytest.mark.parametrize("code", [401, 403, 500])
def test_what_cannot_be_read_blames_no_driver_and_is_told(code: int) -> None:
    driver = Driver()
    looking, _ = look(driver, *[refuse(code, "")] * 2)
    assert driver.told == []
    assert looking.trouble.startswith("it is not known whether the CSINode node-1 lists it: the API server refused")


def test_trouble_ends_with_the_next_answer() -> None:
    driver = Driver()
    looking, _ = look(driver, refuse(403, ""), csi_node(NAME), times=2)
    assert (driver.told, looking.trouble) == ([""], "")


def test_while_no_driver_is_registered_nobody_is_asked() -> None:
    driver = Driver(registered=False)
    assert look(driver, csi_node())[1] == []


def test_credentials_that_are_not_there_yet_are_looked_for_again(tmp_path: Path) -> None:
    """A kubeconfig may be written after the daemon has started."""
    driver = Driver()
    looking = CsiNode(lambda: {NAME: cast("Served", driver)}, "node-1", tmp_path / "kubeconfig", 0.01)

    async def go() -> None:
        async with Scripted([csi_node(NAME)] * 1000) as server:
            running = asyncio.create_task(looking.run())
            async with asyncio.timeout(60):
                while not looking.trouble:
                    await asyncio.sleep(0.01)
                assert "cannot read the kubeconfig" in looking.trouble
                (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
                while not driver.told:
                    await asyncio.sleep(0.01)
            running.cancel()

    asyncio.run(go())
    assert looking.trouble == ""


def kubeconfig(port: int) -> str:
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "here", "context": {"cluster": "here"}}
    return json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "here"})


def test_a_look_that_fails_in_an_unforeseen_way_is_followed_by_another(tmp_path: Path) -> None:
    driver = Driver()
    (tmp_path / "kubeconfig").write_text("")
    looking = CsiNode(lambda: {NAME: cast("Served", driver)}, "node-1", tmp_path / "kubeconfig", 0.01)

    async def go() -> None:
        odd = respond(200, {"spec": {"drivers": [{}]}})
        async with Scripted([odd, *[csi_node(NAME)] * 1000]) as server:
            (tmp_path / "kubeconfig").write_text(kubeconfig(server.port))
            running = asyncio.create_task(looking.run())
            async with asyncio.timeout(60):
                while not driver.told:
                    await asyncio.sleep(0.01)
            running.cancel()

    asyncio.run(go())
    assert set(driver.told) == {""}
