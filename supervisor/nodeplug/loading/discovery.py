"""Where plugin classes come from.

Owns: finding the place of a class by its entry point in the group of the contract's version, or as `module:Class`.
Refuses: to import anything of it (`classes`), to construct anything, and to look at hooks (`examination`).
"""

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, distributions
from typing import Final

from nodeplug.config.mistakes import did_you_mean
from nodeplug.contract import before
from nodeplug.contract.plugin_class import API, GROUP
from nodeplug.loading.classes import Found, Place, PluginRefused

_VERSIONED: Final = re.compile(r"nodeplug(?:\.v([0-9]+))?")
"""Entry-point groups of plugins; the one without a version belongs to the contract before version 1."""
_OWN: Final = "nodeplug"
"""The distribution of the daemon and the bundled plugins."""


def installed() -> Mapping[str, EntryPoint]:
    """Return the entry points of plugins, by name; another contract version's only where there is none for this one."""
    found: dict[str, EntryPoint] = {}
    for point in (point for distribution in distributions() for point in distribution.entry_points):
        known = found.get(point.name)
        if _VERSIONED.fullmatch(point.group) and (known is None or known.group != GROUP == point.group):
            found[point.name] = point
    return found


def find(uses: str, known: Mapping[str, EntryPoint] | None = None) -> Found:
    """Find a plugin class and import it; see `place_of`.

    Raises:
        PluginRefused: there is none, or its module cannot be imported.
    """
    return place_of(uses, known).load()


def place_of(uses: str, known: Mapping[str, EntryPoint] | None = None) -> Place:
    """Find where a plugin class is, by entry-point name or by `module:Class`, without importing it.

    `known` is what is installed, for a caller with many names: the look-up takes milliseconds.

    Raises:
        PluginRefused: no such plugin is installed, or it is written for another version of the contract.
    """
    if ":" in uses:
        module, _, attribute = uses.partition(":")
        return Place(uses, module.strip(), attribute.strip(), f"module {module}")
    known = installed() if known is None else known
    if uses not in known:
        names = ", ".join(sorted(known)) or "none"
        near = did_you_mean(uses, known) or ";"
        raise PluginRefused(
            f"no plugin {uses!r} is installed{near} installed: {names}; or give `uses = 'module:Class'`"
        )
    point = known[uses]
    metadata = None if point.dist is None else point.dist.metadata  # its file is read and parsed for each question
    distribution = point.value if metadata is None else f"{metadata['Name']} {metadata['Version']}"
    _refuse_other_version(point, distribution)
    bundled = metadata is not None and metadata["Name"] == _OWN
    return Place(uses, point.module, point.attr, distribution, bundled)


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
