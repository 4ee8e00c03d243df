"""Routes for undoing where no plugin can be called: its pods must be able to end without it.

Owns: what such a route looks like.
Refuses: to decide when one serves: a front knows which of its verbs undo.
"""

from dataclasses import replace
from typing import Final

from nodeplug.contract.values import VolumeClaim
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.slot import Route, Slot

NOBODY: Final = ""
"""The plugin in the route of a driver that no plugin claims; it counts as having had every hook that undoes."""
UNDOING: Final = frozenset({"volume_unpublish", "volume_unstage"})


def unclaimed(registry: Registry, driver: str) -> Route:
    """Return a route to nobody, for a driver that no plugin claims; its hooks cannot be called."""
    return Route(Slot(NOBODY), UNDOING, {}, VolumeClaim(driver), lambda: registry.route("volume", driver))


def at_rest(registry: Registry, driver: str, undoing: str) -> Route | None:
    """Return a route without callers to a plugin that does not run; None if it has the hook that would have to."""
    found = next((route for route in registry.routes("volume") if route.claim.name == driver), None)
    return replace(found, callers={}) if found is not None and undoing and undoing not in found.hooks else None
