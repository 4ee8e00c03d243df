"""What leads from a configuration to plugins that could run: what changed, and the making of one instance.

Owns: the comparison of two sets of sections; configuring, constructing and examining a plugin.
Refuses: the registry, and to call any hook but `claims`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, told
from nodeplug.contract.errors import PluginError, text_of
from nodeplug.contract.host import Host
from nodeplug.hosting.discovery import Found, PluginRefused, validate_config
from nodeplug.hosting.registry import Loaded, examine, unmarked

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new configuration changes, by section name."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...]

    def __str__(self) -> str:
        parts = ("removed", self.removed), ("added", self.added), ("changed", self.changed)
        return "; ".join(f"{word} {', '.join(names)}" for word, names in parts if names) or "nothing changed"


def difference(now: Mapping[str, PluginSection], wanted: Mapping[str, PluginSection]) -> Difference:
    """Compare two sets of enabled sections. A changed deadline alone changes no plugin."""
    undated = {name: section.model_copy(update={"deadline": {}}) for name, section in wanted.items()}
    return Difference(
        tuple(name for name in now if name not in wanted),
        tuple(name for name in wanted if name not in now),
        tuple(
            name
            for name, section in now.items()
            if name in undated and section.model_copy(update={"deadline": {}}) != undated[name]
        ),
    )


def prepare(
    name: str,
    found: Found,
    config: Mapping[str, Any],
    make_host: Callable[[str], Host],
    tell: Callable[[Location, str], str] = told,
) -> Loaded:
    """Configure, construct and examine a plugin: its own code, so it belongs into a thread with a deadline.

    Raises:
        PluginRefused: it cannot be loaded; the message says at which step.
    """
    plugin = _construct(name, found.cls, validate_config(name, found, config, tell), make_host(name))
    if forgotten := unmarked(found.cls):
        LOG.warning("plugin %s: %s without @hookimpl: nobody calls it", name, ", ".join(forgotten))
    return examine(name, plugin, found.distribution)


def _construct(name: str, cls: Callable[..., object], config: object, host: Host) -> object:
    try:
        return cls(config, host)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        LOG.error("plugin %s cannot be constructed", name, exc_info=error)
        text = f"plugin {name!r} cannot be constructed: {type(error).__name__}: {text_of(error)}"
        raise PluginRefused(text) from error
