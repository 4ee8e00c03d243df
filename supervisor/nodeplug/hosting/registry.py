"""Which plugins are loaded, what they claim, and the way to each claim.

Owns: the check of a plugin's hooks and claims, and which plugin serves which claim.
Refuses: to call any verb. Only `claims` runs here, through the runner's rules for answers.

A request is for exactly one plugin: a route leads to the owner of the claim and every plugin's wrappers (`dispatch`).
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar

import pluggy

from nodeplug.config import PluginSection
from nodeplug.contract.errors import InvalidRequest, NotFound, TryAgain, text_of
from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.contract.names import cni_executable, exclusive_name, extended_resource, flex_driver
from nodeplug.contract.values import Claim, ClaimKind
from nodeplug.hosting.call import Call
from nodeplug.hosting.claimants import Verdict, settle
from nodeplug.hosting.discovery import PluginRefused
from nodeplug.hosting.dispatch import Hooks, callers, hooks_of
from nodeplug.hosting.slot import FIRST_RETRY, Instance, Loaded, Route, Slot

C = TypeVar("C", bound=Claim)
_REQUIRED: Final[Mapping[ClaimKind, tuple[str, ...]]] = {
    "cni": ("cni_add", "cni_del"),
    "device": ("device_list",),
    "volume": (),
    "exclusive": (),
}
_VOLUME_ENTRY: Final = ("volume_stage", "volume_publish")


_NAMES: Final[Mapping[ClaimKind, Callable[[str], str]]] = {
    "cni": cni_executable,
    "device": extended_resource,
    "volume": flex_driver,
    "exclusive": exclusive_name,
}


def check_claim(claim: Claim) -> None:
    """Refuse a name that a caller would refuse later, and less clearly.

    Raises:
        InvalidRequest: the message says which rule is broken.
    """
    check = _NAMES.get(claim.kind)
    if check is None:
        raise InvalidRequest(f"{claim.kind!r} is no kind of claim; known: {', '.join(_NAMES)}")
    try:
        check(claim.name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


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
    def plugins(self) -> dict[str, Loaded]:
        """The plugins that are taken in, by section name."""
        return {name: slot.loaded for name, slot in self.slots.items() if slot.loaded is not None}

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

    def load(
        self, name: str, plugin: object, distribution: str, deadlines: Mapping[str, float] = MappingProxyType({})
    ) -> Loaded:
        """Examine a constructed plugin that needs no start and serve it; nothing is registered when it is refused.

        Raises:
            PluginRefused: see `examine` and `adopt`.
        """
        slot, loaded = self.slot(name), examine(name, plugin, distribution)
        self.adopt(Instance(slot, PluginSection(), distribution, loaded))
        slot.deadlines = deadlines
        slot.enter("running")
        return loaded

    def adopt(self, instance: Instance) -> None:
        """Take in a loaded instance, in the place of the one that its slot has.

        Raises:
            PluginRefused: one of its claims has another owner; both are named.
        """
        verdict = self.admissible([instance])
        if instance.name in verdict.refused:
            raise PluginRefused(verdict.refused[instance.name])
        self.exchange((), [instance])

    def admissible(self, candidates: Iterable[Instance], leaving: Collection[str] = ()) -> Verdict[Loaded]:
        """Tell which candidates can be taken in together, once the plugins `leaving` are gone; see `claimants`."""
        present = {name: loaded for name, loaded in self.plugins.items() if name not in leaving}
        return settle(present, [one.loaded for one in candidates if one.loaded is not None], self.order)

    def exchange(self, leaving: Iterable[str], entering: Iterable[Instance]) -> None:
        """Let plugins go and others take their places, in one step: each claim leads to its new owner from now on."""
        for name in leaving:
            if (gone := self.slots.pop(name, None)) is not None:
                gone.loaded = None
                gone.enter("refused")  # who waits there goes on to another owner, or to none
        for instance in entering:
            self.expect(instance)
            instance.slot.loaded = instance.loaded
        self._rebuild()

    def end(self) -> None:
        """Forget every section and refuse calls for good; claims still lead to their slots, which say why."""
        for slot in self.slots.values():
            slot.enter("ended")
        self.slots.clear()

    def unload(self, name: str) -> None:
        """Forget a plugin; succeed when it is not loaded."""
        self.exchange([name], ())

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
        ordered = sorted(self.plugins.values(), key=lambda loaded: ranks.get(loaded.name, len(ranks)))
        for loaded in ordered:
            others = [(other.plugin, other.wrappers) for other in ordered if other is not loaded]
            loaded.callers.update(callers(loaded.plugin, loaded.hooks, others))
            slot = self.slots[loaded.name]
            for claim in loaded.claims:
                now = partial(self.route, claim.kind, claim.name)
                routes[claim.kind, claim.name] = Route(slot, loaded.hooks, loaded.callers, claim, now)
        self._routes = routes


def examine(name: str, plugin: object, distribution: str) -> Loaded:
    """Check a constructed plugin against the contract. Calls its `claims`, so it belongs into a thread.

    Raises:
        PluginRefused: see `examine_hooks`; a claim that is malformed, twice there, or without a hook that it needs.
    """
    who = f"plugin {name!r} of {distribution}"
    hooks = examine_hooks(name, plugin, distribution)
    try:
        claims = tuple(callers(plugin, hooks.own, ())["claims"]())
        for claim in claims:
            _check_claimed(who, claim, hooks.own)
    except PluginRefused:
        raise
    except InvalidRequest as error:
        raise PluginRefused(f"{who} cannot be loaded: {text_of(error)}") from error
    except (Exception, SystemExit) as error:
        raise PluginRefused(f"{who} cannot be loaded: {type(error).__name__}: {text_of(error)}") from error
    if len(set(claims)) != len(claims):
        raise PluginRefused(f"{who} claims one name twice: {', '.join(map(str, claims))}")
    return Loaded(name, distribution, plugin, claims, hooks.own, hooks.wrappers, {})


def examine_hooks(name: str, plugin: object, distribution: str) -> Hooks:
    """Check the hooks of a plugin against the contract, and that it can be asked for its claims.

    Raises:
        PluginRefused: a misnamed hook or argument, an `async def` hook, one with `yield`, or no `claims`.
    """
    who = f"plugin {name!r} of {distribution}"
    _refuse_async(who, plugin)
    try:
        hooks = hooks_of(name, plugin)
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginRefused(f"{who} breaks the contract: {error}") from error
    _refuse_generators(who, plugin, hooks.own)
    if "claims" not in hooks.own:
        raise PluginRefused(f"{who} has no claims(): it answers to nothing")
    return hooks


def unmarked(plugin: type[object]) -> tuple[str, ...]:
    """Return the methods that have the name of a hook and are not marked as one: nobody calls them."""
    mark = "nodeplug_impl"  # what `hookimpl` leaves on a function
    methods = {name: getattr(plugin, name, None) for name in ANSWERS}
    return tuple(name for name, method in methods.items() if callable(method) and not hasattr(method, mark))


def _check_claimed(who: str, claim: object, hooks: frozenset[str]) -> None:
    if not isinstance(claim, Claim):
        raise PluginRefused(f"{who} claims {claim!r}, which is a {type(claim).__name__}, not a Claim")
    check_claim(claim)
    missing = [hook for hook in _REQUIRED[claim.kind] if hook not in hooks]
    if missing:
        raise PluginRefused(f"{who} claims {claim} but has no {' and no '.join(missing)}")
    if claim.kind == "volume" and not any(hook in hooks for hook in _VOLUME_ENTRY):
        raise PluginRefused(f"{who} claims {claim} but has neither volume_stage nor volume_publish")


def _refuse_async(who: str, plugin: object) -> None:
    for hook in ANSWERS:
        method = getattr(plugin, hook, None)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise PluginRefused(f"{who}: {hook} is `async def`; hooks are synchronous, each call has its own thread")


def _refuse_generators(who: str, plugin: object, own: Iterable[str]) -> None:
    for hook in sorted(own):
        if inspect.isgeneratorfunction(getattr(plugin, hook)):
            raise PluginRefused(
                f"{who}: {hook} contains `yield`, so that a call of it does nothing; return a list or tuple, "
                "or mark it `@hookimpl(wrapper=True)` if it shall wrap the hook of other plugins"
            )
