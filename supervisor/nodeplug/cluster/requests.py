"""Requests to the API server within a budget, so that a thousand nodes cannot overwhelm it together.

Owns: how many requests one node makes: a few at once, and so many a second for good; and their count.
Refuses: what is asked for.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import Object, Resource

MANAGER = "nodeplug"
"""The field manager of all that is applied here."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Budget:
    """A bucket of requests that fills with time.

    Attributes:
        burst: requests at once.
        interval: seconds for each request that may follow.
        clock: seconds of a monotonic clock.
    """

    burst: int
    interval: float
    clock: Callable[[], float] = time.monotonic
    _left: float = field(init=False)
    _seen: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._seen = float(self.burst), self.clock()

    def pause(self) -> float:
        """Return the seconds until a request could be made at once, and take none."""
        left = min(self.burst, self._left + (self.clock() - self._seen) / self.interval)
        return max(0.0, (1 - left) * self.interval)

    def wait(self) -> float:
        """Take a request out of the bucket; return the seconds after which it may be made."""
        now = self.clock()
        self._left = min(self.burst, self._left + (now - self._seen) / self.interval) - 1
        self._seen = now
        return max(0.0, -self._left * self.interval)


@dataclass(slots=True)
class Count:
    """What became of requests, for status and metrics.

    Attributes:
        requests: that were made.
        refused: that were answered with a refusal, or not at all.
        waiting: that wait for their turn now.
    """

    requests: int = 0
    refused: int = 0
    waiting: int = 0


@dataclass(slots=True)
class Requests:
    """A client within a budget. Event loop only."""

    client: Client
    budget: Budget
    count: Count

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """See `Client.get`."""
        return await self._ask(lambda: self.client.get(resource, name, namespace))

    async def apply(
        self,
        resource: Resource,
        applied: Mapping[str, Any],
        namespace: str = "",
        part: str = "",
        *,
        force: bool = False,
    ) -> Object:
        """See `Client.apply`; the manager is ours."""
        return await self._ask(lambda: self.client.apply(resource, applied, MANAGER, namespace, part, force=force))

    async def create(self, resource: Resource, made: Mapping[str, Any], namespace: str) -> Object:
        """See `Client.create`."""
        return await self._ask(lambda: self.client.create(resource, made, namespace))

    async def patch(self, resource: Resource, name: str, patch: Mapping[str, Any], namespace: str) -> Object:
        """See `Client.patch`."""
        return await self._ask(lambda: self.client.patch(resource, name, patch, namespace))

    async def _ask(self, work: Callable[[], Awaitable[_T]]) -> _T:
        self.count.waiting += 1
        try:
            await asyncio.sleep(self.budget.wait())
        finally:
            self.count.waiting -= 1
        self.count.requests += 1
        try:
            return await work()
        except NotFound:  # an answer like any other: pods come and go
            raise
        except PluginError:
            self.count.refused += 1
            raise
