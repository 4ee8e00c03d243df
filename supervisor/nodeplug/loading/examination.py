"""From a section to a plugin: its class found, configured, constructed, and examined against the contract.

Owns: what a plugin must have to be accepted, and how a refusal is worded. All of it runs plugin code, so in the daemon
it belongs in a thread (`Runner.load`).
Refuses: to register a plugin, and to know who else claims the same name (the registry's).
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import pluggy

from nodeplug.contract import before
from nodeplug.contract.errors import InvalidRequest, PluginError, text_of
from nodeplug.contract.hookspecs import ANSWERS, RESERVED, Contract
from nodeplug.contract.host import Host
from nodeplug.contract.names import cni_executable, exclusive_name, extended_resource, extender_path, flex_driver
from nodeplug.contract.values import Claim, ClaimKind
from nodeplug.loading.classes import Found, PluginRefused, validate_config
from nodeplug.loading.dispatch import callers, hook_table

if TYPE_CHECKING:
    from nodeplug.config.mistakes import Location

LOG: Final = logging.getLogger(__name__)
_REQUIRED: Final[Mapping[ClaimKind, tuple[str, ...]]] = {"cni": ("cni_add", "cni_del"), "device": ("device_list",)}
_VOLUME_ENTRY: Final = ("volume_stage", "volume_publish")
_EXTENDER_VERBS: Final = ("extender_filter", "extender_prioritize", "extender_preempt", "extender_bind")
_PAIRS: Final = {"volume_create": "volume_delete", "volume_snapshot": "volume_snapshot_delete"}
"""What a volume driver has only together."""
_NAMES: Final[Mapping[ClaimKind, Callable[[str], str]]] = {
    "cni": cni_executable,
    "device": extended_resource,
    "volume": flex_driver,
    "extender": extender_path,
    "exclusive": exclusive_name,
}


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a plugin implements: hooks of its own, and wrappers around others'."""

    own: frozenset[str]
    wrappers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Examined:
    """A constructed plugin that the contract accepts.

    Attributes:
        plugin: the object whose hooks are called.
        distribution: where its class comes from.
        claims: what it serves.
        hooks: the hooks that it implements.
        wrappers: the hooks of others that it wraps.
        callers: by hook name; each calls the plugin, without anybody's wrappers.
    """

    plugin: object = None
    distribution: str = ""
    claims: tuple[Claim, ...] = ()
    hooks: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()
    callers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def construct(
    name: str,
    found: Found,
    config: Mapping[str, Any],
    make_host: Callable[[], Host],
    tell: "Callable[[Location, str], str]",
) -> Examined:
    """Construct the plugin of a section and examine it, so that its hooks can be called.

    Raises:
        PluginRefused: it cannot be loaded; the message says at which step.
    """
    valid, host = validate_config(name, found, config, tell), make_host()
    try:
        plugin = found.cls(valid, host)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        LOG.error("plugin %s cannot be constructed", name, exc_info=error)
        text = f"plugin {name!r} cannot be constructed: {type(error).__name__}: {text_of(error)}"
        raise PluginRefused(text) from error
    if forgotten := unmarked(found.cls):
        LOG.warning("plugin %s: %s without @hookimpl: nobody calls it", name, ", ".join(forgotten))
    examined = examine(name, plugin, found.distribution)
    if early := sorted(examined.hooks & RESERVED):
        LOG.info("plugin %s has %s: nothing calls it yet", name, " and ".join(early))
    return examined


def examine(name: str, plugin: object, distribution: str) -> Examined:
    """Check a constructed plugin against the contract. Calls its `claims`.

    Raises:
        PluginRefused: see `examine_hooks`; or a claim is malformed, repeated, or lacks a hook that it needs.
    """
    who, hooks = f"plugin {name!r} of {distribution}", examine_hooks(name, plugin, distribution)
    hook_callers = callers(plugin, hooks.own, ())
    try:
        claims = tuple(hook_callers["claims"]())
        check_claims(who, claims, hooks.own)
    except PluginRefused:
        raise
    except InvalidRequest as error:
        raise PluginRefused(f"{who} cannot be loaded: {text_of(error)}") from error
    except (Exception, SystemExit) as error:
        raise PluginRefused(f"{who} cannot be loaded: {type(error).__name__}: {text_of(error)}") from error
    return Examined(plugin, distribution, claims, hooks.own, hooks.wrappers, hook_callers)


def check_claims(who: str, claims: Sequence[Claim], hooks: frozenset[str]) -> None:
    """Check what a plugin claims; for one in a process, the daemon does it, too: the process may say anything.

    Raises:
        PluginRefused: what it claims is no claim, lacks hooks, or is claimed twice.
        InvalidRequest: a name breaks the rule of its kind.
    """
    for claim in claims:
        _check_claimed(who, claim, hooks)
    if len(set(claims)) != len(claims):
        raise PluginRefused(f"{who} claims one name twice: {', '.join(map(str, claims))}")


def examine_hooks(name: str, plugin: object, distribution: str) -> Hooks:
    """Check the hooks of a plugin against the contract, and that it can be asked for its claims.

    Raises:
        PluginRefused: a misnamed hook or argument, an `async def` hook, one with `yield`, or no `claims`.
    """
    who = f"plugin {name!r} of {distribution}"
    for hook in ANSWERS:
        method = getattr(plugin, hook, None)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise PluginRefused(f"{who}: {hook} is `async def`; hooks are synchronous, each call has its own thread")
    table = hook_table()
    try:
        table.register(plugin, name)
        table.check_pending()  # register() silently accepts a misnamed hook
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginRefused(f"{who} breaks the contract: {_misnamed(table, plugin) or error}") from error
    impls = [impl for caller in table.get_hookcallers(plugin) or () for impl in caller.get_hookimpls()]
    wrappers = frozenset(impl.function.__name__ for impl in impls if impl.wrapper or impl.hookwrapper)
    own = frozenset(impl.function.__name__ for impl in impls) - wrappers
    _refuse_generators(who, plugin, own)
    if "claims" not in own:
        raise PluginRefused(f"{who} has no claims(): it answers to nothing")
    return Hooks(own, wrappers)


def check_claim(claim: Claim) -> None:
    """Raise InvalidRequest, with the broken rule, for a name that a caller would refuse later and less clearly."""
    check = _NAMES.get(claim.kind)
    if check is None:
        raise InvalidRequest(f"{claim.kind!r} is no kind of claim; known: {', '.join(_NAMES)}")
    try:
        check(claim.name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def unmarked(plugin: type[object]) -> tuple[str, ...]:
    """Return the methods that are named like a hook but not marked as one: nobody calls them."""
    mark = "nodeplug_impl"  # what `hookimpl` leaves on a function
    methods = {name: getattr(plugin, name, None) for name in ANSWERS}
    return tuple(name for name, method in methods.items() if callable(method) and not hasattr(method, mark))


def _misnamed(table: pluggy.PluginManager, plugin: object) -> str:
    """Name the hook or argument that the contract does not have; empty when something else is wrong."""
    for name in dir(plugin):
        if table.parse_hookimpl_opts(plugin, name) is None:
            continue
        if name not in ANSWERS:
            if name in before.HOOKS:
                return f"there is no hook {name!r} since API 1: write {before.HOOKS[name]}; see {before.PLACE}"
            near = get_close_matches(name, ANSWERS, 1)
            return f"there is no hook {name!r}; " + (f"is it {near[0]}?" if near else f"there are {', '.join(ANSWERS)}")
        known = list(inspect.signature(getattr(Contract, name)).parameters)[1:]
        asked = inspect.signature(getattr(plugin, name)).parameters
        if unknown := [argument for argument in asked if argument not in known]:
            instead = before.ARGUMENTS.get((name, unknown[0]))
            if instead is not None:
                return f"{name} has no argument {unknown[0]!r} since API 1: write {instead}; see {before.PLACE}"
            return f"{name} has no argument {unknown[0]!r}; it may take {', '.join(known) or 'none'}"
    return ""


def _check_claimed(who: str, claim: object, hooks: frozenset[str]) -> None:
    if not isinstance(claim, Claim):
        raise PluginRefused(f"{who} claims {claim!r}, which is a {type(claim).__name__}, not a Claim")
    check_claim(claim)
    missing = [hook for hook in _REQUIRED.get(claim.kind, ()) if hook not in hooks]
    if missing:
        raise PluginRefused(f"{who} claims {claim} but has no {' and no '.join(missing)}")
    if claim.kind == "volume" and hooks.isdisjoint(_VOLUME_ENTRY):
        raise PluginRefused(f"{who} claims {claim} but has neither volume_stage nor volume_publish")
    if claim.kind == "extender" and hooks.isdisjoint(_EXTENDER_VERBS):
        raise PluginRefused(f"{who} claims {claim} but has none of {', '.join(_EXTENDER_VERBS)}")
    for made, ended in _PAIRS.items():
        if claim.kind == "volume" and made in hooks and ended not in hooks:
            raise PluginRefused(f"{who} claims {claim} and has {made} but no {ended}")


def _refuse_generators(who: str, plugin: object, own: Iterable[str]) -> None:
    for hook in sorted(own):
        if inspect.isgeneratorfunction(getattr(plugin, hook)):
            raise PluginRefused(
                f"{who}: {hook} contains `yield`, so that a call of it does nothing; return a list or tuple, "
                "or mark it `@hookimpl(wrapper=True)` if it shall wrap the hook of other plugins"
            )
