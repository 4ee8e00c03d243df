"""One driver: the section whose devices it has, what is listed of them, and where kubelet reaches it.

Owns: which resources of the section are listed, their pools, and what is done at every turn while it is needed.
Refuses: the API server (`publication`), and which drivers there are (`drivers`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Protocol

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.values import Device, DeviceId, ResourceName
from nodeplug.dra import names, server
from nodeplug.dra.listing import Listing
from nodeplug.dra.pools import pool_of
from nodeplug.dra.preparation import Preparation
from nodeplug.dra.served import Served
from nodeplug.dra.values import Pool
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route

LOG: Final = logging.getLogger(__name__)
Order = Literal["listed", "most-free-first"]
UNCONFIRMED: Final = 10.0
"""Seconds that slices of an earlier daemon stay as they were while there is no list that could confirm them."""
_LAST_ALLOCATE: Final = 4.0
"""Seconds that an Allocate may take that had begun when the section moved, until kubelet tells of it."""
_PATIENCE: Final = 15.0
_TURN: Final = 0.1
_PRESTART: Final = "device_prestart"
_RESTORE: Final = 10.0
"""Seconds between two looks at the CDI specs of prepared claims: a lost one fails every start of its containers."""


class WhoHolds(Protocol):
    """What is asked of who knows the containers that hold devices by kubelet's device plugins."""

    def soon(self) -> None:
        """Have kubelet asked soon."""

    def unknown_since(self, moment: float) -> str:
        """Return why it is not known who holds devices since a moment of the monotonic clock; empty if it is."""


@dataclass(slots=True)
class Driver:
    """The driver of one section. Event loop only.

    Attributes:
        section: whose devices it has.
        name: of the driver.
        node: the node's name.
        preparation: of claims.
        served: its sockets.
        news: tells of another list those who watch the health.
        runner: calls the plugin.
        poll: seconds between two listings.
        order: of devices, see `pools`.
        changed: is called when pools may have changed.
        who_holds: who knows what containers hold by kubelet's device plugins.
        known: the section's plugin has been loaded, and its claims are known.
        problem: why the specs of claims are not what they should be; empty if they are.
    """

    section: str
    name: str
    node: str
    preparation: Preparation
    served: Served
    news: server.News
    runner: Runner
    poll: float
    order: Order
    changed: Callable[[], None]
    who_holds: WhoHolds
    known: bool = False
    problem: str = ""
    _listings: dict[ResourceName, tuple[Listing, asyncio.Task[None]]] = field(default_factory=dict)
    _pools: dict[str, Pool] = field(default_factory=dict)
    _made_of: dict[str, tuple[tuple[Device, ...], frozenset[DeviceId], frozenset[DeviceId]]] = field(
        default_factory=dict
    )
    _refused: dict[str, str] = field(default_factory=dict)
    _restored: float = float("-inf")
    _releasing: asyncio.Task[None] | None = None
    _unserved: dict[ResourceName, str] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)

    # --- what the life cycle of its plugin says

    def serve(self, routes: Sequence[Route]) -> None:
        """List what the section claims now, and no longer what it does not."""
        self.known = True
        claimed = {ResourceName(route.claim.name): route for route in routes if not self._unserve(route)}
        for resource in self._listings.keys() - claimed.keys():
            self._listings.pop(resource)[1].cancel()
        for resource, route in claimed.items():
            if resource in self._listings:
                self._listings[resource][0].take_over(route)
                continue
            listing = Listing(route, self.runner, self.poll, self._have_listed)
            task = asyncio.create_task(listing.run(), name=f"list {resource}")
            self._listings[resource] = listing, task
        self._have_listed()

    def _unserve(self, route: Route) -> str:
        """Return why a resource cannot be served by claims; empty if it can."""
        resource = ResourceName(route.claim.name)
        self._unserved.pop(resource, None)
        if _PRESTART not in route.hooks:
            return ""
        why = (
            f"plugin {route.plugin!r} has {_PRESTART}, which nobody calls for claims: serve {resource} as a device "
            'plugin (serve = "device-plugin")'
        )
        LOG.error("DRA driver %s does not offer %s: %s", self.name, resource, why)
        self._unserved[resource] = why
        return why

    def hold(self) -> None:
        """Keep what is listed, and ask nothing: the plugin is about to be exchanged."""
        for listing, _ in self._listings.values():
            listing.hold()

    def withdraw(self, why: str) -> None:
        """List every device as one that cannot serve: the plugin could not be started, or not even be loaded."""
        if not self.known:  # what an earlier daemon has published would be promised
            self.unlist()
        for listing, _ in self._listings.values():
            listing.withdraw(why)

    def unlist(self) -> None:
        """List nothing any more."""
        self.serve(())

    def refresh(self, resource: ResourceName) -> None:
        """Ask for another list of a resource."""
        if resource in self._listings:
            self._listings[resource][0].refresh()

    def _have_listed(self) -> None:
        self.news.tell()
        self.changed()

    # --- what is listed

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools that are listed."""
        return tuple(self.by_name().values())

    def by_name(self) -> Mapping[str, Pool]:
        """Return the pools that are listed, by name; a resource that was never listed has none yet."""
        listed = {names.pool_name(self.node, name): one for name, (one, _) in self._listings.items()}
        self._pools = {name: pool for name, pool in self._pools.items() if name in listed}
        self._made_of = {name: known for name, known in self._made_of.items() if name in listed}
        for name, listing in listed.items():
            if listing.devices is not None:
                self._bring(name, listing.resource, listing.devices)
                if name in self._pools and self._pools[name].away != listing.away:
                    self._pools[name] = replace(self._pools[name], away=listing.away)
        return self._pools

    def _bring(self, name: str, resource: ResourceName, devices: tuple[Device, ...]) -> None:
        """Make a pool anew if what it is made of has changed; one that cannot be made leaves the last."""
        made_of = devices, *self._held(resource)
        if self._made_of.get(name) == made_of:
            return
        self._made_of[name] = made_of
        try:
            self._pools[name] = pool_of(self.node, resource, *made_of, order=self.order)
            self.changed()  # whoever asks first, slices have to say so
            self._refused.pop(name, None)
        except PluginError as error:
            if self._refused.get(name) != error.message:
                LOG.warning("pool %s stays as it is: %s", name, error.message)
            self._refused[name] = error.message

    @property
    def wanted(self) -> Mapping[str, Pool | None] | None:
        """What slices are to say, by pool: None for one that was not listed yet; None while nothing is known."""
        if not self.known:
            return None
        pools = self.by_name()
        wanted: dict[str, Pool | None] = {}
        for resource, (listing, _) in self._listings.items():
            name = names.pool_name(self.node, resource)
            silent = time.monotonic() > listing.since + UNCONFIRMED
            wanted[name] = pools.get(name) or (Pool(name, resource, ()) if silent else None)
        return wanted

    async def listed(self, pool: str) -> None:
        """Wait until a pool has been listed once, for at most 15 s. Return at once if no first list is pending.

        kubelet asks a daemon that has just started for claims of the slices that the former daemon has published.
        """
        end = time.monotonic() + _PATIENCE
        while self._is_pending(pool):
            if time.monotonic() > end:
                return
            await asyncio.sleep(_TURN)

    def _is_pending(self, pool: str) -> bool:
        """Whether the first list of a pool is pending: the plugin starts, or its first `device_list` has not ended."""
        if not self.known:
            return True
        found = [one for name, (one, _) in self._listings.items() if names.pool_name(self.node, name) == pool]
        return any(one.devices is None and not one.trouble for one in found)

    async def settled(self, resource: ResourceName) -> None:
        """Wait until it is known what containers hold that got it before claims could: the section may have moved.

        Raises:
            NotReady: kubelet does not say so.
        """
        begun = time.monotonic()
        since = self._listings[resource][0].since + _LAST_ALLOCATE
        while why := self.who_holds.unknown_since(since):
            if time.monotonic() > begun + _PATIENCE:
                raise NotReady(f"what containers hold of {resource} by kubelet's device plugins is not known: {why}")
            self.who_holds.soon()
            await asyncio.sleep(_TURN)

    # --- at every turn

    async def keep(self) -> None:
        """Serve, look after the specs of claims, and tell the plugin of claims that have ended."""
        try:
            await self.served.keep()
        except PluginError as error:
            self.served.problem = error.message
        else:
            self.served.problem = "" if self.served.registered else self.served.problem
        if time.monotonic() - self._restored >= _RESTORE:
            await self.served.sweep()  # a predecessor that was killed while it handed over has left some
            try:
                await self.preparation.restore()
                self.problem, self._restored = "", time.monotonic()
            except PluginError as error:
                if error.message != self.problem:
                    LOG.warning("%s", error.message)
                self.problem = error.message
        self.release()
        if any(self._outdated(listing) or self._unconfirmed(listing) for listing, _ in self._listings.values()):
            self._have_listed()

    def release(self) -> None:
        """Begin to tell the plugin of claims that have ended, unless that is under way; nobody waits for a plugin."""
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.create_task(self.preparation.release(), name=f"release claims of {self.name}")

    def _unconfirmed(self, listing: Listing) -> bool:
        """Whether what an earlier daemon has published is to go now, since nothing confirms it."""
        name = names.pool_name(self.node, listing.resource)
        if name in self._pools or name in self._given_up or time.monotonic() <= listing.since + UNCONFIRMED:
            return False
        self._given_up.add(name)
        return True

    def _outdated(self, listing: Listing) -> bool:
        """Whether somebody holds, or holds no more, what its pool is made of."""
        made_of = self._made_of.get(names.pool_name(self.node, listing.resource))
        return made_of is not None and made_of[1:] != self._held(listing.resource)

    def _held(self, resource: ResourceName) -> tuple[frozenset[DeviceId], frozenset[DeviceId]]:
        """Return which ids containers hold that kubelet's device plugins got, and which claims hold."""
        preparation = self.preparation
        return frozenset(preparation.elsewhere(resource)), frozenset(preparation.ledger.taken(resource))

    async def end(self) -> None:
        """Stop serving and listing; claims and slices stay."""
        self.news.end()
        for _, task in self._listings.values():
            task.cancel()
        self._listings.clear()
        await self.served.end()

    def status(self, trouble: str) -> dict[str, Any]:
        """Describe it.

        Args:
            trouble: why its slices are not what they should be; empty if they are.
        """
        listings = [one for one, _ in self._listings.values()]
        listing = next((one.trouble for one in listings if one.trouble), "")
        refused = next(iter([*self._unserved.values(), *self._refused.values()]), "")
        records = self.preparation.ledger.of(self.section)
        return {
            "driver": self.name,
            "section": self.section,
            "registered": self.served.registered,
            "problem": listing or refused or trouble or self.served.problem or self.problem,
            "pools": [
                {
                    "pool": pool.name,
                    "resource": pool.resource,
                    "devices": len(pool.devices),
                    "unhealthy": sum(bool(one.reason) for one in pool.devices),
                }
                for pool in self.pools
            ],
            "claims": [
                {
                    "claim": str(one.claim),
                    "uid": one.claim.uid,
                    "phase": one.phase,
                    "ids": [name for held in one.held for name in held.ids],
                }
                for one in records
            ],
        }
