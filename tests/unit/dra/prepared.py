"""A driver without sockets: claims from a dictionary, real records and specs, and a plugin that notes what it is asked.

Owns: the plugin, and the objects of claims.
Refuses: gRPC, an API server, a scheduler.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceList,
    DeviceReleased,
    Grant,
    NotFound,
    NotReady,
    Part,
    ResourceName,
    TryAgain,
    hookimpl,
)
from nodeplug.contract.journal import Journal
from nodeplug.dra.cdi import SpecFolder
from nodeplug.dra.claims import ClaimReference, PreparedDevice
from nodeplug.dra.ledger import Ledger
from nodeplug.dra.names import pool_name
from nodeplug.dra.pools import pool_of
from nodeplug.dra.preparation import Preparation
from nodeplug.dra.records import read_record
from nodeplug.dra.values import Pool
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner

MEM = ResourceName("example.com/mem")
DRIVER = "cards.nodeplug.io"
POOL = pool_name("node-1", MEM)
GIB = 1 << 30


def units(card: str, count: int) -> list[Device]:
    return [Device(DeviceId(f"{card}-{n}"), part=Part(DeviceId(card), {"memory": GIB})) for n in range(count)]


class Cards:
    """Two cards of four units; grants the ids as a variable, and can be told to refuse."""

    def __init__(self) -> None:
        self.listed = [*units("a", 4), *units("b", 4)]
        self.allocated: list[DeviceAllocate] = []
        self.released: list[DeviceReleased] = []
        self.refuses = self.cannot_list = ""
        self.deaf = False

    @hookimpl
    def claims(self) -> list[Claim]:
        return [DeviceClaim(MEM)]

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:
        if self.cannot_list:
            raise NotReady(self.cannot_list)
        return self.listed

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant:
        self.allocated.append(request)
        if self.refuses:
            raise TryAgain(self.refuses)
        return Grant(env={"UNITS": ",".join(request.ids)})

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        if self.deaf:
            raise TryAgain("it does not listen")
        self.released.append(request)


def result(device: str, amount: str = "", request: str = "gpu", **more: Any) -> dict[str, Any]:
    made = {"request": request, "driver": DRIVER, "pool": POOL, "device": device, **more}
    return made | ({"consumedCapacity": {"memory": amount}, "shareID": f"share-{device}"} if amount else {})


def claim(name: str, *results: Mapping[str, Any], uid: str = "", config: Sequence[Any] = ()) -> dict[str, Any]:
    devices = {"results": list(results), **({"config": list(config)} if config else {})}
    status = {"allocation": {"devices": devices}} if results else {}
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}"}, "status": status}


@dataclass
class Prepared:
    """The driver; `again` is the one of a daemon that starts later on the same disk."""

    folder: Path
    plugin: Cards = field(default_factory=Cards)
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    elsewhere: set[DeviceId] = field(default_factory=set)
    freed: list[ResourceName] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    unsettled: str = ""
    awaited: bool = False
    keys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = registry = Registry()
        registry.load("cards", self.plugin, "d")
        self.journal = Journal(self.folder / "journal", "boot")
        self.specs = self.folder / "cdi"
        self.preparation = Preparation(
            driver=DRIVER,
            section="cards",
            pools=self.pools,
            claim=self._claim,
            elsewhere=lambda _: self.elsewhere,
            listed=self._listed,
            settled=self._settled,
            freed=self.freed.append,
            awaited=lambda: self.awaited,
            ended=lambda: None,
            registry=registry,
            runner=Runner(lambda call, _: self.keys.append(call.key)),
            ledger=self.ledger,
            journal=self.journal,
            specs=SpecFolder(self.specs, DRIVER),
        )

    def pools(self) -> dict[str, Pool]:
        return {POOL: pool_of("node-1", MEM, self.plugin.listed, self.elsewhere, self.ledger.taken(MEM).keys())}

    async def _listed(self, _: str) -> None: ...

    async def _settled(self, _: ResourceName) -> None:
        if self.unsettled:
            raise NotReady(self.unsettled)

    async def _claim(self, wanted: ClaimReference) -> dict[str, Any]:
        if wanted.name not in self.objects:
            raise NotFound(f"claim {wanted} is not there")
        return self.objects[wanted.name]

    def put(self, name: str, *results: Mapping[str, Any], **more: Any) -> None:
        self.objects[name] = claim(name, *results, **more)

    async def prepare(self, name: str, uid: str = "") -> list[PreparedDevice]:
        reference = ClaimReference(uid or f"uid-{name}", "ns", name)
        return await self.preparation.prepare(Call("NodePrepareResources", f"dra:{DRIVER}"), reference)

    async def unprepare(self, name: str, uid: str = "") -> None:
        reference = ClaimReference(uid or f"uid-{name}", "ns", name)
        await self.preparation.unprepare(Call("NodeUnprepareResources", f"dra:{DRIVER}"), reference)

    def ids(self, name: str) -> tuple[str, ...]:
        record = self.ledger.records.get(f"cards uid-{name}")
        return () if record is None else tuple(one for held in record.held for one in held.ids)

    def again(self) -> "Prepared":
        """Start on the same disk after a kill: memory is gone, records are read."""
        other = Prepared(self.folder, self.plugin, self.objects, self.elsewhere)
        for entry in self.journal.entries():
            other.ledger.note(read_record(entry))
        return other
