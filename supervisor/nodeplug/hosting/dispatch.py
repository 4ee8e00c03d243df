"""How a hook call reaches the plugin that owns a claim, and everyone's wrappers around it.

Owns: one pluggy manager per plugin, which holds that plugin and the others' wrappers, so that a call can reach nobody
else: not even a plugin that is being loaded at that moment.
Refuses: claims and configuration (the registry's), threads (the runner's).

A request is for exactly one plugin. With pluggy's broadcast a DEL, which rightly answers None, would run in every
plugin; and pluggy's subset callers look at the shared table anew at each call.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pluggy

from nodeplug.contract import before
from nodeplug.contract.hookspecs import ANSWERS, Contract

LIFE_CYCLE: Final = frozenset({"claims", "prepare", "start", "stop", "health"})
"""Hooks that nobody else may wrap: another plugin's audit must not run in this one's start."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a plugin implements: hooks of its own, and wrappers around others'."""

    own: frozenset[str]
    wrappers: frozenset[str]


class _Wrappers:
    """The wrappers of a plugin, without its other hooks."""

    def __init__(self, plugin: object, hooks: Iterable[str]) -> None:
        for hook in hooks:
            setattr(self, hook, getattr(plugin, hook))


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("nodeplug")
    manager.add_hookspecs(Contract)
    return manager


def hooks_of(name: str, plugin: object) -> Hooks:
    """Read a plugin's hooks.

    Raises:
        pluggy.PluginValidationError: a hook or an argument has a name that the contract does not know; the message says
            which it may be.
        ValueError: the object cannot be a plugin.
    """
    manager = _manager()
    try:
        manager.register(plugin, name)
        manager.check_pending()  # register() takes a misnamed hook without a word
    except pluggy.PluginValidationError as error:
        raise pluggy.PluginValidationError(plugin, _misnamed(manager, plugin) or str(error)) from error
    impls = [impl for caller in manager.get_hookcallers(plugin) or () for impl in caller.get_hookimpls()]
    wrapping = frozenset(impl.function.__name__ for impl in impls if impl.wrapper or impl.hookwrapper)
    return Hooks(frozenset(impl.function.__name__ for impl in impls) - wrapping, wrapping)


def _misnamed(manager: pluggy.PluginManager, plugin: object) -> str:
    """Say which hook or argument has no place in the contract; empty when names are not what is wrong."""
    for name in dir(plugin):
        if manager.parse_hookimpl_opts(plugin, name) is None:
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


def callers(
    owner: object, own: Iterable[str], wrapping: Iterable[tuple[object, frozenset[str]]]
) -> dict[str, Callable[..., Any]]:
    """Build the callers of one plugin's hooks.

    Args:
        owner: the plugin.
        own: its hooks.
        wrapping: the other plugins, in load order, with the hooks that each wraps.

    Returns:
        By hook name. What they reach never changes: plugins that come or go need new callers.
    """
    manager = _manager()
    for plugin, hooks in wrapping:
        if hooks - LIFE_CYCLE:
            manager.register(_Wrappers(plugin, hooks - LIFE_CYCLE))
    manager.register(owner)
    return {hook: getattr(manager.hook, hook) for hook in own}
