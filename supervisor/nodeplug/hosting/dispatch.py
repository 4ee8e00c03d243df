"""How a hook call reaches the plugin that owns a claim, and everyone's wrappers around it.

Owns: one pluggy manager per plugin, which holds that plugin and the others' wrappers, so that a call can reach nobody
else: not even a plugin that is being loaded at that moment.
Refuses: what a plugin must have (`loading`), claims (the registry's), threads (the runner's).

A request is for exactly one plugin. With pluggy's broadcast a DEL, which rightly answers None, would run in every
plugin; and pluggy's subset callers look at the shared table anew at each call.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pluggy

from nodeplug.contract.hookspecs import Contract

LIFE_CYCLE: Final = frozenset({"claims", "prepare", "start", "stop", "health"})
"""Hooks that nobody else may wrap: another plugin's audit must not run in this one's start."""


class _Wrappers:
    """The wrappers of a plugin, without its other hooks."""

    def __init__(self, plugin: object, hooks: Iterable[str]) -> None:
        for hook in hooks:
            setattr(self, hook, getattr(plugin, hook))


def hook_table() -> pluggy.PluginManager:
    """Return a table of the contract's hooks, without a plugin."""
    table = pluggy.PluginManager("nodeplug")
    table.add_hookspecs(Contract)
    return table


def callers(
    owner: object, own: Iterable[str], wrapping: Iterable[tuple[object, frozenset[str]]]
) -> dict[str, Callable[..., Any]]:
    """Build the callers of one plugin's own hooks, by name, with the hooks that each other plugin wraps, in load order.

    What they reach never changes: plugins that come or go need new callers.
    """
    table = hook_table()
    for plugin, hooks in wrapping:
        if hooks - LIFE_CYCLE:
            table.register(_Wrappers(plugin, hooks - LIFE_CYCLE))
    table.register(owner)
    return {hook: getattr(table.hook, hook) for hook in own}
