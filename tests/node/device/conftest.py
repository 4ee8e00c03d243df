"""Plugins and a way to run coroutines for the tests of the device front."""

import asyncio
import logging
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DevicePrefer,
    DevicePrestart,
    DeviceReleased,
    Grant,
    hookimpl,
)

RESOURCE = "example.com/thing"


@dataclass(eq=False)
class Minimal:
    """Only what is required; its list can be changed, or fail."""

    devices: Sequence[Device] = tuple(Device(DeviceId(f"d{n}"), grant=Grant(env={f"D{n}": "1"})) for n in range(4))
    failure: Exception | None = None
    listings: int = 0

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        self.listings += 1
        if self.failure is not None:
            raise self.failure
        return self.devices

    def mark(self, name: str, *, healthy: bool) -> None:
        self.devices = [
            Device(device.id, healthy=healthy, reason="" if healthy else "it smokes") if device.id == name else device
            for device in self.devices
        ]


@dataclass(eq=False)
class Full(Minimal):
    """Every hook, recording what it was asked; each can be made to fail or hang."""

    asked: list[Any] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    hang: threading.Event | None = None
    preference: Callable[[DevicePrefer], Sequence[DeviceId] | None] = lambda request: request.available[: request.size]

    def _record(self, hook: str, request: Any) -> None:
        self.asked.append(request)
        if hook in self.errors:
            raise self.errors[hook]

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        self._record("device_allocate", request)
        if self.hang is not None:
            self.hang.wait(30)
        return None

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        self._record("device_prefer", request)
        return self.preference(request)

    @hookimpl
    def device_prestart(self, request: DevicePrestart) -> None:
        self._record("device_prestart", request)

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        self._record("device_released", request)

    def releases(self) -> list[DeviceReleased]:
        return [request for request in self.asked if isinstance(request, DeviceReleased)]


@pytest.fixture
def minimal() -> Minimal:
    return Minimal()


@pytest.fixture
def full() -> Full:
    return Full()


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: those of sockets have 107 bytes at most, which pytest's own folders use up."""
    with tempfile.TemporaryDirectory(prefix="np") as folder:
        yield Path(folder)


@pytest.fixture
def run(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Run a coroutine to its end, in at most a minute; an error that asyncio can only log fails the test."""

    def runner(work: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await work

        asyncio.run(bounded())

    yield runner
    lost = [record for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.WARNING]
    assert not lost, [record.getMessage() for record in lost]
