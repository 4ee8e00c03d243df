"""The making of one instance.

Owns: finding, configuring, constructing and examining a plugin: its own code, so it belongs into a thread with a
deadline.
Refuses: the registry, and to call any hook but `claims`.
"""

import logging
from collections.abc import Callable
from typing import Final

from nodeplug.config.mistakes import Location
from nodeplug.contract.errors import PluginError, text_of
from nodeplug.contract.host import Host
from nodeplug.hosting.discovery import PluginRefused, find, validate_config
from nodeplug.hosting.dispatch import LIFE_CYCLE, callers
from nodeplug.hosting.registry import examine, unmarked
from nodeplug.hosting.slot import Instance, Loaded

LOG: Final = logging.getLogger(__name__)


def construct(instance: Instance, make_host: Callable[[str], Host], tell: Callable[[Location, str], str]) -> Loaded:
    """Make the plugin of an instance, which can be called for its own life, and note whose class it is.

    Raises:
        PluginRefused: it cannot be loaded; the message says at which step.
    """
    name, found = instance.name, find(instance.uses)
    instance.distribution = found.distribution
    config = validate_config(name, found, instance.section.config, tell)
    plugin = _construct(name, found.cls, config, make_host(name))
    if forgotten := unmarked(found.cls):
        LOG.warning("plugin %s: %s without @hookimpl: nobody calls it", name, ", ".join(forgotten))
    loaded = examine(name, plugin, found.distribution)
    loaded.callers.update(callers(plugin, loaded.hooks & LIFE_CYCLE, ()))
    return loaded


def _construct(name: str, cls: Callable[..., object], config: object, host: Host) -> object:
    try:
        return cls(config, host)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        LOG.error("plugin %s cannot be constructed", name, exc_info=error)
        text = f"plugin {name!r} cannot be constructed: {type(error).__name__}: {text_of(error)}"
        raise PluginRefused(text) from error
