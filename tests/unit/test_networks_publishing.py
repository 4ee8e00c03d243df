"""What a node says of networks of the cluster while the API server refuses it, and other networks come meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kubeapi.scripted import Scripted, refuse, respond

from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import NETWORKS, NODES
from nodeplug.networks import publishing
from nodeplug.networks.conflists import Conflists
from nodeplug.networks.publishing import Publishing

FORBIDDEN = refuse(403, "Forbidden")


@dataclass
class Node:
    """A node with networks whose objects were brought by no watch."""

    server: Scripted
    publishing: Publishing

    @property
    def told(self) -> list[str]:
        """The networks whose status was to be told, in order."""
        return [one.line.split("/")[-3] for one in self.server.asked]

    @property
    def problems(self) -> list[str]:
        return sorted(self.publishing.problems)

    async def look(self, *answers: bytes, changed_by: int = 0) -> None:
        """Have it look, the server answer, and a network change while a request is answered, where one is numbered."""

        async def answered(writer: asyncio.StreamWriter) -> None:
            self.publishing.changed.set()
            writer.write(answers[changed_by - 1])
            await writer.drain()

        self.server.answers[:] = [answered if number == changed_by else one for number, one in enumerate(answers, 1)]
        self.publishing.changed.clear()
        await self.publishing._look()
        assert self.server.answers == []


@asynccontextmanager
async def node(folder: Path, *networks: str) -> AsyncIterator[Node]:
    async with Scripted([]) as server, server.client() as client:
        changed = asyncio.Event()
        known, nodes = (Followed(client, resource, lambda _: True, changed) for resource in (NETWORKS, NODES))
        known.objects = {name: network(name) for name in networks}
        places = folder / "net.d", folder / "bin"
        for place in places:
            place.mkdir()
        made = Publishing(client, "n", known, nodes, Conflists(folder), lambda: ["b"], places, frozenset, changed, [])
        yield Node(server, made)


def network(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "generation": 1}, "spec": {"plugins": [{"type": "b"}]}}


def test_a_problem_lasts_while_a_look_that_is_cut_short_does_not_come_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with node(tmp_path, "blue", "green") as here:
            await here.look(FORBIDDEN, FORBIDDEN)
            monkeypatch.setattr(publishing, "_TOLD_FOR", 0.0)
            await here.look(FORBIDDEN, changed_by=1)
            assert here.told == ["blue", "green", "blue"]
            assert here.problems == ["blue", "green"]
            await here.look(respond(200, {}), FORBIDDEN)
            assert here.problems == ["green"]

    asyncio.run(scene())
    assert [caplog.text.count(f"network {name}: ") for name in ("blue", "green")] == [1, 1]


def test_a_problem_of_a_network_that_is_gone_ends_with_the_next_look_although_it_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with node(tmp_path, "blue", "green") as here:
            await here.look(FORBIDDEN, FORBIDDEN)
            del here.publishing.networks.objects["green"]
            monkeypatch.setattr(publishing, "_TOLD_FOR", 0.0)
            await here.look(FORBIDDEN, changed_by=1)
            assert here.problems == ["blue"]

    asyncio.run(scene())
