"""A plugin that writes down its life and stops where a test wants it to, and the life cycle around it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from nodeplug import CniClaim, CniResult, Host, hookimpl
from nodeplug.cni.delegate import Delegation
from nodeplug.config import PluginSection
from nodeplug.hosting.call import Call
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.testing import host


class Net:
    """Writes down its life; its configuration says what goes wrong."""

    class Config(BaseModel, extra="forbid"):
        claims: tuple[str, ...] = ("net",)
        mark: str = "first"
        broken: bool = False
        failing: bool = False
        unready: bool = False
        delegate: str = ""

    life: ClassVar[list[str]] = []
    gates: ClassVar[dict[str, threading.Event]] = {}

    def __init__(self, config: Config, host: Host) -> None:
        self._config = config
        self._host = host
        self._life, self._gates = self.life, self.gates  # of its test: it may stop when another one runs
        self._say("construct")
        if config.broken:
            raise OSError("no")

    def _say(self, what: str) -> None:
        said = f"{what} {self._config.mark}"
        self._life.append(said)
        if said in self._gates:
            assert self._gates[said].wait(20)

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(name) for name in self._config.claims]

    @hookimpl
    def start(self) -> None:
        self._say("start")
        if self._config.failing:
            raise OSError("no")

    @hookimpl
    def stop(self) -> None:
        self._say("stop")

    @hookimpl
    def cni_add(self, request: Any) -> CniResult:
        self._say("add")
        if self._config.delegate:
            self._host.delegate(request, self._config.delegate)
        self._say("added")
        return CniResult()

    @hookimpl
    def cni_del(self) -> None: ...


class Checking(Net):
    """Has one hook more."""

    @hookimpl
    def cni_check(self) -> None: ...


class Slow(Net):
    """Gets ready before it starts."""

    @hookimpl
    def prepare(self) -> None:
        self._say("prepare")
        if self._config.unready:
            raise OSError("no")


class Policy(Net):
    """Wraps what it does not own."""

    @hookimpl(wrapper=True)
    def cni_add(self) -> Generator[None, CniResult, CniResult]:  # type: ignore[override] # a wrapper is a generator
        self._say("wrap")
        return (yield)


@dataclass(frozen=True, slots=True)
class Delegates:
    """Calls another plugin as a CNI request would, without a network."""

    delegation: Delegation

    def __call__(self, request: Any, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        with self.delegation.visiting(self.delegation.registry.route("cni", plugin_type)) as entered:
            answer: CniResult | None = entered.callers["cni_add"](request=request)
        return answer


class Request:
    """Enough of a request for plugins that only pass it on."""

    config: ClassVar[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Nets:
    """What tests need.

    Attributes:
        life: what plugins did, with their mark.
    """

    lifecycle: Lifecycle
    life: list[str]
    request: Request = field(default_factory=Request)

    def section(self, kind: str = "Net", **config: Any) -> PluginSection:
        return PluginSection(uses=f"{__name__}:{kind}", isolation="thread", config=config)

    def gate(self, what: str) -> threading.Event:
        """Let whoever writes `what` into `life` wait there until the event is set."""
        return Net.gates.setdefault(what, threading.Event())

    async def said(self, what: str) -> None:
        while what not in self.life:
            await asyncio.sleep(0.001)

    async def add(self, key: str = "", route: Route | None = None) -> None:
        route = route or self.lifecycle.registry.route("cni", "net")
        call = Call("ADD", str(route.claim), key=key)
        await self.lifecycle.runner.call(route, "cni_add", call, {"request": self.request})

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await scenario()

        asyncio.run(main())


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Nets]:
    registry, runner = Registry(), Runner()
    delegates = Delegates(Delegation(registry, visiting=runner.visiting))

    def make_host(name: str) -> Host:
        return host(tmp_path, plugin=name, delegate=delegates)

    Net.life, Net.gates = [], {}
    yield Nets(Lifecycle(registry, runner, make_host), Net.life)
    for gate in Net.gates.values():
        gate.set()
