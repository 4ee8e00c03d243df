"""Which plugins are taken in, and the way to each claim.

Owns: the slots of all sections, and which plugin serves which claim.
Refuses: to call any hook, and to load (`loading`).

A request is for exactly one plugin: a route leads to the owner of the claim and every plugin's wrappers (`dispatch`).
"""

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
from nodeplug.hosting.discovery import PluginRefused
from nodeplug.hosting.dispatch import callers
from nodeplug.hosting.loading import examine
from nodeplug.hosting.slot import FIRST_RETRY, Instance, Route, Slot

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
    """The slots of all sections, and which claims lead to them. Used from the event loop alone.

    Attributes:
        slots: by section name, of the sections that there are.
        order: of the sections in the configuration.
    """

    slots: dict[str, Slot] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    _known: dict[str, Slot] = field(default_factory=dict)
    _routes: dict[tuple[ClaimKind, str], Route] = field(default_factory=dict)

    @property
    def plugins(self) -> dict[str, Instance]:
        """The plugins that are taken in, by section name. Any thread may ask."""
        return {name: slot.loaded for name, slot in list(self.slots.items()) if slot.loaded is not None}

    @property
    def calls(self) -> list[tuple[Call, bool]]:
        """Every call in flight, the oldest first, and whether it is overdue; also those of sections that are gone."""
        calls = [(one.call, one in slot.overdue) for slot in self._known.values() for one in slot.calls.values()]
        return sorted(calls, key=lambda one: one[0].started)

    def slot(self, name: str) -> Slot:
        """Return the slot of a section: one that comes back finds the calls that its plugin has left behind."""
        return self._known.setdefault(name, Slot(name))

    def expect(self, instance: Instance) -> None:
        """Let an instance stand for its section from now on, with nothing said about it that was not said before."""
        slot = self.slots[instance.name] = instance.slot
        if slot.instance is not instance:
            slot.instance, slot.state, slot.retry_after = instance, "starting", FIRST_RETRY
            slot.fault = slot.outdone_by = slot.rejected = ""

    def compare(self, wanted: Mapping[str, PluginSection]) -> Difference:
        """Compare the sections that there are with those of a configuration. A changed deadline changes no plugin."""
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
        """Examine a constructed plugin that needs no start and serve it; nothing is registered when it is refused.

        Raises:
            PluginRefused: see `examine` and `adopt`.
        """
        instance = Instance(self.slot(name), PluginSection(), distribution)
        examine(instance, plugin)
        self.adopt(instance)
        instance.slot.deadlines = deadlines
        instance.slot.enter("running")
        return instance

    def adopt(self, instance: Instance) -> None:
        """Take in a loaded instance, in the place of the one that its slot has.

        Raises:
            PluginRefused: one of its claims has another owner; both are named.
        """
        verdict = self.admissible([instance])
        if instance.name in verdict.refused:
            raise PluginRefused(verdict.refused[instance.name])
        self.exchange((), [instance])

    def admissible(self, candidates: Iterable[Instance], leaving: Collection[str] = ()) -> Verdict:
        """Tell which candidates can be taken in together, once the plugins `leaving` are gone; see `claimants`."""
        present = {name: loaded for name, loaded in self.plugins.items() if name not in leaving}
        return settle(present, candidates, self.order)

    def exchange(self, leaving: Iterable[str], entering: Iterable[Instance]) -> None:
        """Let plugins go and others take their places, in one step: each claim leads to its new owner from now on."""
        for name in leaving:
            if (gone := self.slots.pop(name, None)) is not None:
                gone.loaded = None
                gone.enter("refused")  # who waits there goes on to another owner, or to none
        for instance in entering:
            self.expect(instance)
            instance.slot.loaded = instance
        self._rebuild()

    def end(self) -> None:
        """Forget every section and refuse calls for good; claims still lead to their slots, which say why."""
        for slot in self.slots.values():
            slot.loaded = None
            slot.enter("ended")
        self.slots.clear()

    def route(self, kind: ClaimKind, name: str) -> Route:
        """Return the way to a claim.

        Raises:
            NotFound: nobody claims it; the message lists what is claimed.
            Ending: its owner has been stopped, because the daemon ends.
            TryAgain: its owner does not run at present, or may be one that still loads; the message says why.
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
        """Renew all callers: a plugin that came or went may have brought or taken wrappers."""
        # Delegation reads the table from the threads of calls, so it is swapped whole.
        routes: dict[tuple[ClaimKind, str], Route] = {}
        ranks = {name: rank for rank, name in enumerate(self.order)}
        # By their order in the configuration: of two wrappers the same one is the outer one after a restart.
        ordered = sorted(self.plugins.values(), key=lambda one: ranks.get(one.name, len(ranks)))
        for one in ordered:
            others = [(other.plugin, other.wrappers) for other in ordered if other is not one]
            one.callers.update(callers(one.plugin, one.hooks, others))
            for claim in one.claims:
                now = partial(self.route, claim.kind, claim.name)
                routes[claim.kind, claim.name] = Route(one.slot, one.hooks, one.callers, claim, now)
        self._routes = routes
