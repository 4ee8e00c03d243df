"""Which plugins are loaded, what they claim, and the way to each claim.

Owns: the check of a plugin's hooks and claims, and which plugin serves which claim.
Refuses: to call any verb. Only `claims` runs here, through the runner's rules for answers.

A request is for exactly one plugin: a route leads to the owner of the claim and every plugin's wrappers (`dispatch`).
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pluggy

from nodeplug.contract.errors import Ending, InvalidRequest, NotFound, TryAgain, text_of
from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.contract.names import cni_executable, extended_resource, flex_driver
from nodeplug.contract.values import Claim, ClaimKind
from nodeplug.hosting.claimants import Verdict, settle
from nodeplug.hosting.discovery import GROUP, PluginRefused
from nodeplug.hosting.dispatch import Hooks, callers, hooks_of

_REQUIRED: Final[Mapping[ClaimKind, tuple[str, ...]]] = {
    "cni": ("cni_add", "cni_del"),
    "device": ("device_list",),
    "volume": (),
}
_VOLUME_ENTRY: Final = ("volume_stage", "volume_publish")


@dataclass(frozen=True, slots=True)
class PluginRoute:
    """The way to a plugin itself, for its life-cycle hooks.

    Attributes:
        plugin: the section name.
        hooks: the hooks that the plugin implements.
        callers: by hook name; calls the plugin and all wrappers. Kept up to date when plugins come and go.
    """

    plugin: str
    hooks: frozenset[str]
    callers: Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Route(PluginRoute):
    """The way to one claim of a plugin."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Loaded:
    """One plugin that is loaded: its section, its origin and what it answers to."""

    name: str
    distribution: str
    plugin: object
    claims: tuple[Claim, ...]
    hooks: frozenset[str]
    wrappers: frozenset[str]
    callers: dict[str, Callable[..., Any]]

    @property
    def who(self) -> str:
        """The plugin by section and distribution, for messages."""
        return f"plugin {self.name!r} of {self.distribution}"

    @property
    def route(self) -> PluginRoute:
        """The way to the plugin itself."""
        return PluginRoute(self.name, self.hooks, self.callers)


_NAMES: Final[Mapping[ClaimKind, Callable[[str], str]]] = {
    "cni": cni_executable,
    "device": extended_resource,
    "volume": flex_driver,
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
    """The loaded plugins. Used from the event loop alone.

    Attributes:
        plugins: by section name.
        disabled: why a loaded plugin serves nothing at present, by section name.
        loading: sections that load for the first time: what they will claim is not known yet.
        ending: the daemon ends, and nothing new begins.
        order: of the sections in the configuration.
    """

    plugins: dict[str, Loaded] = field(default_factory=dict)
    disabled: dict[str, str] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    ending: bool = False
    order: tuple[str, ...] = ()
    _routes: dict[tuple[ClaimKind, str], Route] = field(default_factory=dict)

    def load(self, name: str, plugin: object, distribution: str) -> Loaded:
        """Examine a constructed plugin and take it in; nothing stays registered when it is refused.

        Raises:
            PluginRefused: see `examine` and `adopt`.
        """
        return self.adopt(examine(name, plugin, distribution))

    def adopt(self, candidate: Loaded) -> Loaded:
        """Take in an examined plugin, in the place of one that has its name.

        Raises:
            PluginRefused: one of its claims has another owner; both are named.
        """
        verdict = settle(self.plugins, [candidate], ())
        if candidate.name in verdict.refused:
            raise PluginRefused(verdict.refused[candidate.name])
        self.exchange((), [candidate])
        return candidate

    def admissible(self, candidates: Iterable[Loaded], leaving: Collection[str] = ()) -> Verdict[Loaded]:
        """Tell which candidates can be taken in together, once the plugins `leaving` are gone; see `claimants`."""
        present = {name: loaded for name, loaded in self.plugins.items() if name not in leaving}
        return settle(present, candidates, self.order)

    def exchange(self, leaving: Iterable[str], entering: Iterable[Loaded]) -> None:
        """Let plugins go and others take their places, in one step: each claim leads to its new owner from now on."""
        for name in leaving:
            self.plugins.pop(name, None)
        for candidate in entering:
            self.plugins[candidate.name] = candidate
        self._rebuild()

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
            if self.loading:
                late = ", ".join(sorted(self.loading))
                raise TryAgain(
                    f"nobody serves {kind} {name!r} yet, and plugins still load: {late}; ask again in a moment"
                )
            known = ", ".join(sorted(claimed for of, claimed in self._routes if of == kind)) or "none"
            raise NotFound(
                f"no enabled plugin serves {kind} {name!r}; served: {known}; enable one in the configuration, "
                "and see `nodeplug plugins` for one that was refused"
            )
        if self.ending:
            raise Ending("the daemon is ending; ask again in a moment")
        if route.plugin in self.disabled:
            raise TryAgain(f"plugin {route.plugin!r} is not running: {self.disabled[route.plugin]}")
        return route

    def renewed(self, route: PluginRoute) -> PluginRoute:
        """Return the way as it is now: the claim may have got another owner, or its owner another instance.

        Raises:
            NotFound, TryAgain: see `route`. The way to a plugin itself leads to one instance and stays as it is.
        """
        return self.route(route.claim.kind, route.claim.name) if isinstance(route, Route) else route

    def routes(self, kind: ClaimKind) -> Sequence[Route]:
        """Return all routes of one kind."""
        return [route for (of, _), route in self._routes.items() if of == kind]

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
            for claim in loaded.claims:
                routes[claim.kind, claim.name] = Route(loaded.name, loaded.hooks, loaded.callers, claim)
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
    mark = f"{GROUP}_impl"  # what `hookimpl` leaves on a function
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
