"""Where plugin classes come from.

Owns: finding a class by its entry point in the group of the contract's version or as `module:Class`, and validating
its section's configuration with the class's own `Config`.
Refuses: to construct anything, and to look at hooks (`loading`).
"""

import importlib
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from nodeplug.config.mistakes import Location, Mistake, did_you_mean, explain, first, told
from nodeplug.contract import before
from nodeplug.contract.errors import PluginError, text_of
from nodeplug.contract.plugin_class import API, GROUP

_VERSIONED: Final = re.compile(r"nodeplug(?:\.v([0-9]+))?")
"""Entry-point groups of plugins; the one without a version belongs to the contract before version 1."""


class NoConfig(BaseModel):
    """The configuration of a plugin that has none: any key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginRefused(PluginError):
    """A plugin cannot be loaded; the message names it, its distribution and the reason."""


class Misconfigured(PluginRefused):
    """A plugin's own table is wrong; the message has one line per mistake."""

    def __init__(self, mistakes: Iterable[Mistake], tell: Callable[[Location, str], str]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(first([tell(one.location, one.text) for one in self.mistakes])))


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin class that can be loaded."""

    cls: type[Any]
    distribution: str

    @property
    def config_model(self) -> type[BaseModel]:
        """The class that validates `[plugins.<name>.config]`."""
        model: type[BaseModel] = getattr(self.cls, "Config", NoConfig)
        return model


_FORGETTING: Final = threading.Lock()
"""Plugins are found in several threads, and importlib fails when another thread clears the same cache."""


def installed() -> Mapping[str, EntryPoint]:
    """Return the entry points of plugins, by name; another contract version's only where there is none for this one."""
    found: dict[str, EntryPoint] = {}
    for point in (point for distribution in distributions() for point in distribution.entry_points):
        known = found.get(point.name)
        if _VERSIONED.fullmatch(point.group) and (known is None or known.group != GROUP == point.group):
            found[point.name] = point
    return found


def find(uses: str, known: Mapping[str, EntryPoint] | None = None) -> Found:
    """Find a plugin class by entry-point name, or by `module:Class`.

    `known` is what is installed, for a caller with many names: the look-up takes milliseconds.

    Raises:
        PluginRefused: there is none, or its module cannot be imported.
    """
    point, distribution = _named(uses, known)
    try:
        with _FORGETTING:
            importlib.invalidate_caches()
        cls = point.load()
    except (Exception, SystemExit) as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == point.module
        advice = "; install its package into this environment, or name its folder in PYTHONPATH" if absent else ""
        raise PluginRefused(
            f"plugin {uses!r} of {distribution} cannot be imported: {type(error).__name__}: {text_of(error)}{advice}"
        ) from error
    if not inspect.isclass(cls):
        raise PluginRefused(f"plugin {uses!r} of {distribution} is a {type(cls).__name__}, not a class")
    found = Found(cls, distribution)
    if not (inspect.isclass(found.config_model) and issubclass(found.config_model, BaseModel)):
        raise PluginRefused(
            f"plugin {uses!r} of {distribution}: its Config is no pydantic model; derive it from BaseModel"
        )
    return found


def origin(uses: str) -> str:
    """Return the distribution or module of a plugin, without importing it; raise PluginRefused if there is none."""
    return _named(uses, None)[1]


def _named(uses: str, known: Mapping[str, EntryPoint] | None) -> tuple[EntryPoint, str]:
    if ":" in uses:
        return EntryPoint(uses, uses, GROUP), f"module {uses.partition(':')[0]}"
    known = installed() if known is None else known
    if uses not in known:
        names = ", ".join(sorted(known)) or "none"
        near = did_you_mean(uses, known) or ";"
        raise PluginRefused(
            f"no plugin {uses!r} is installed{near} installed: {names}; or give `uses = 'module:Class'`"
        )
    point = known[uses]
    distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
    _refuse_other_version(point, distribution)
    return point, distribution


def _refuse_other_version(point: EntryPoint, origin: str) -> None:
    version = re.sub(r"\D", "", point.group)
    if point.group == before.GROUP:
        raise PluginRefused(
            f"plugin {point.name!r} of {origin} is written for the contract before version 1; move its entry point to "
            f"the group {GROUP!r} and follow the table in {before.PLACE}, or install a later release of it"
        )
    if point.group != GROUP:
        raise PluginRefused(
            f"plugin {point.name!r} of {origin} is written for version {version} of the contract and this nodeplug "
            f"speaks version {API}; install a nodeplug for it, or a release of the plugin for version {API}"
        )


def validate_config(
    name: str, found: Found, config: Mapping[str, Any], tell: Callable[[Location, str], str] = told
) -> BaseModel:
    """Validate a plugin's own configuration; `tell` writes a mistake with its file and line.

    Raises:
        Misconfigured: with every wrong key.
        PluginRefused: its class raises something else.
    """
    document = dict(config)
    try:
        return found.config_model.model_validate(document)
    except ValidationError as error:
        mistakes = explain(error, found.config_model, document)
        raise Misconfigured([_in_section(name, found, one) for one in mistakes], tell) from error
    except (Exception, SystemExit) as error:
        text = f"plugin {name!r} of {found.distribution} cannot validate its configuration: {type(error).__name__}"
        raise PluginRefused(f"{text}: {text_of(error)}") from error


def _in_section(name: str, found: Found, mistake: Mistake) -> Mistake:
    why = ": the plugin's class has no Config" if found.config_model is NoConfig else ""
    return Mistake(("plugins", name, "config", *mistake.location), mistake.text + why)
