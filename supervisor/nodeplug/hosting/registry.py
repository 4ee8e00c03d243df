"""Which plugins are registered, and the route to each claim.

Owns: the slots of all sections, and which plugin serves which claim.
Refuses: to call any hook, and to load (`loading`).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from nodeplug.config import PluginSection
from nodeplug.contract.errors import NotFound, TryAgain
from nodeplug.contract.values import Claim, ClaimKind
from nodeplug.hosting.call import Call
from nodeplug.hosting.claimants import Verdict, settle
from nodeplug.hosting.slot import FIRST_RETRY, Instance, Route, Slot
from nodeplug.loading.classes import PluginRefused
from nodeplug.loading.examination import examine

C = TypeVar("C", bound=Claim)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new configuration changes, by section name."""

    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = ("removed", self.removed), ("added", self.added), ("changed", self.changed)
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names) or "nothing changed"


@dataclass(slots=True)
class Registry:
    """The slots of all sections by name, their order, and the routes to their claims. Used only from the event loop.

    Attributes:
        slots: by section name.
        order: of the sections in the configuration.
        health_wanted: sections whose plugins want to be asked for their health now.
        health_news: set while there are such.
        cluster_news: set when a plugin has something new to say to the cluster.
        ended: every section is forgotten, because the daemon ends.
    """

    slots: dict[str, Slot] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    health_wanted: set[str] = field(default_factory=set)
    health_news: asyncio.Event = field(default_factory=asyncio.Event)
    cluster_news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    _known: dict[str, Slot] = field(default_factory=dict)
    _routes: dict[tuple[ClaimKind, str], Route] = field(default_factory=dict)

    @property
    def plugins(self) -> dict[str, Instance]:
        """The registered plugins, by section name. Safe in any thread."""
        return {name: slot.loaded for name, slot in list(self.slots.items()) if slot.loaded is not None}

    @property
    def calls(self) -> list[tuple[Call, bool]]:
        """Every call in flight, oldest first, and whether it is overdue; calls of removed sections included."""
        calls = [(one.call, one in slot.overdue) for slot in self._known.values() for one in slot.calls.values()]
        return sorted(calls, key=lambda one: one[0].started)

    def want_health(self, name: str) -> None:
        """Note that a section's plugin wants to be asked for its health now."""
        self.health_wanted.add(name)
        self.health_news.set()

    def slot(self, name: str) -> Slot:
        """Return the slot of a section; a section that comes back finds the calls that its plugin left behind."""
        return self._known.setdefault(name, Slot(name))

    def expect(self, instance: Instance) -> None:
        """Let an instance stand for its section from now on, without the faults of an earlier one."""
        slot = self.slots[instance.name] = instance.slot
        if slot.instance is not instance:
            slot.instance, slot.state, slot.retry_after = instance, "starting", FIRST_RETRY
            slot.fault = slot.outdone_by = slot.rejected = ""

    def compare(self, wanted: Mapping[str, PluginSection]) -> Difference:
        """Compare the present sections with those of a configuration. A changed deadline changes no plugin."""
        now = {name: slot.instance.section for name, slot in self.slots.items()}

        def differs(name: str) -> bool:
            return now[name].model_copy(update={"deadline": wanted[name].deadline}) != wanted[name]

        return Difference(
            removed=tuple(name for name in now if name not in wanted),
            added=tuple(name for name in wanted if name not in now),
            changed=tuple(name for name in now if name in wanted and differs(name)),
        )

    def load(
        self, name: str, plugin: object, distribution: str, deadlines: Mapping[str, float] = MappingProxyType({})
    ) -> Instance:
        """Examine a constructed plugin that needs no start and serve it; if it is refused, nothing is registered."""
        instance = Instance(self.slot(name), PluginSection())
        instance.take(examine(name, plugin, distribution))
        self.adopt(instance)
        instance.slot.deadlines = deadlines
        instance.slot.enter("running")
        return instance

    def adopt(self, instance: Instance) -> None:
        """Register a loaded instance in its slot; raise PluginRefused if a claim has another owner, with both names."""
        verdict = self.admissible([instance])
        if instance.name in verdict.refused:
            raise PluginRefused(verdict.refused[instance.name])
        self.exchange((), [instance])

    def admissible(self, candidates: Iterable[Instance], leaving: Collection[str] = ()) -> Verdict:
        """Return which candidates can be registered together, once the plugins `leaving` are gone; see `claimants`."""
        present = {name: loaded for name, loaded in self.plugins.items() if name not in leaving}
        return settle(present, candidates, self.order)

    def exchange(self, leaving: Iterable[str], entering: Iterable[Instance]) -> None:
        """Remove plugins and register others in one step, after which each claim leads to its new owner."""
        for name in leaving:
            if (gone := self.slots.pop(name, None)) is not None:
                gone.loaded = None
                gone.enter("refused")  # calls that wait there go on to another owner, or to none
        for instance in entering:
            self.expect(instance)
            instance.slot.loaded = instance
        self._rebuild()

    def end(self) -> None:
        """Forget every section and refuse all further calls; claims still lead to their slots, which say why."""
        for slot in self.slots.values():
            slot.loaded = None
            slot.enter("ended")
        self.ended = True
        self.slots.clear()

    def owners(self, claims: Iterable[Claim]) -> set[str]:
        """Return the sections whose plugins serve any of these claims now."""
        routes = (self._routes.get((claim.kind, claim.name)) for claim in claims)
        return {one.slot.name for one in routes if one is not None and one.slot.loaded is not None}

    def route(self, kind: ClaimKind, name: str) -> Route:
        """Return the route to a claim.

        Raises:
            NotFound: nobody claims it; the message lists what is claimed.
            Ending: its owner was stopped because the daemon is ending.
            TryAgain: its owner is not running, or a plugin that still loads may claim it; the message has the reason.
        """
        route = self._routes.get((kind, name))
        if route is None:
            late = ", ".join(sorted(slot.name for slot in list(self.slots.values()) if slot.loading))
            if late:
                raise TryAgain(
                    f"nobody serves {kind} {name!r} yet, and plugins still load: {late}; ask again in a moment"
                )
            known = ", ".join(sorted(claimed for of, claimed in self._routes if of == kind)) or "none"
            raise NotFound(
                f"no enabled plugin serves {kind} {name!r}; served: {known}; enable one in the configuration, "
                "and see `nodeplug plugins` for one that was refused"
            )
        route.slot.check()
        return route

    def routes(self, kind: ClaimKind) -> Sequence[Route]:
        """Return all routes of one kind, whether their owners run or not."""
        return [route for (of, _), route in self._routes.items() if of == kind]

    def claimed(self, kind: type[C]) -> Sequence[tuple[C, frozenset[str]]]:
        """Return all claims of one kind, each with the hooks of its owner."""
        return [(route.claim, route.hooks) for route in self._routes.values() if isinstance(route.claim, kind)]

    def _rebuild(self) -> None:
        """Build the routes again, and the callers of each plugin if the plugins that wrap its hooks have changed."""
        # Delegation reads the table from the threads of calls, so it is replaced as a whole.
        routes: dict[tuple[ClaimKind, str], Route] = {}
        ranks = {name: rank for rank, name in enumerate(self.order)}
        # In the order of the configuration, so that a restart nests wrappers in the same way.
        ordered = sorted(self.plugins.values(), key=lambda one: ranks.get(one.name, len(ranks)))
        wrapping = [one for one in ordered if one.examined.wrappers]
        for one in ordered:
            one.wrap([other for other in wrapping if other is not one])
            for claim in one.claims:
                now = partial(self.route, claim.kind, claim.name)
                routes[claim.kind, claim.name] = Route(one.slot, one.hooks, one.callers, claim, now)
        self._routes = routes
