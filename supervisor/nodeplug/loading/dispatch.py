"""How a hook call reaches the plugin that owns a claim, and everyone's wrappers around it.

Owns: one pluggy manager per plugin, with that plugin and the others' wrappers. A call can reach no other plugin, not
even one that is just being loaded.
Refuses: what a plugin must have (`loading`), claims (the registry's), threads (the runner's).

A request is for exactly one plugin. With pluggy's broadcast a DEL, which rightly answers None, would run in every
plugin; and pluggy's subset callers read the shared table again at each call.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pluggy

from nodeplug.contract.hookspecs import Contract

LIFE_CYCLE: Final = frozenset({"claims", "prepare", "start", "stop", "health"})
"""Hooks that no other plugin may wrap: its audit must not run in this one's start."""


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
    """Build the callers of a plugin's own hooks, by name, with the hooks that other plugins wrap, in load order.

    What they reach never changes: when plugins come or go, new callers are needed.
    """
    table = hook_table()
    for plugin, hooks in wrapping:
        if hooks - LIFE_CYCLE:
            table.register(_Wrappers(plugin, hooks - LIFE_CYCLE))
    table.register(owner)
    return {hook: getattr(table.hook, hook) for hook in own}
