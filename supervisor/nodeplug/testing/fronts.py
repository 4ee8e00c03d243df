"""The two fronts by which a section can serve devices: kubelet's device plugins, or Dynamic Resource Allocation.

Owns: what `both` means, and a configuration in which plugins serve by one of them.
Refuses: to act one out (`kubelet`, `dra`).
"""

import tomllib
from collections.abc import Collection
from typing import Any, Final, Literal

from nodeplug.commands import toml
from nodeplug.contract.errors import InvalidRequest

Front = Literal["device-plugin", "dra"]
FRONTS: Final[tuple[Front, ...]] = ("device-plugin", "dra")


def fronts(asked: str) -> tuple[Front, ...]:
    """Return the fronts that are asked for with `device-plugin`, `dra` or `both`.

    Raises:
        InvalidRequest: it is none of these.
    """
    found = tuple(one for one in FRONTS if asked in (one, "both"))
    if not found:
        raise InvalidRequest(f"{asked!r} is no way to serve devices; take device-plugin, dra or both")
    return found


def served(plugins: str, front: Front, names: Collection[str]) -> str:
    """Return `[plugins.*]` tables in which some plugins serve their devices by one front, whatever they say.

    Args:
        plugins: the tables, in TOML; a text that is none is returned as it is, for the daemon to say what is wrong.
        front: the front.
        names: the sections.
    """
    document = _read(plugins)
    for name in names:
        if isinstance(section := document.get("plugins", {}).get(name), dict):
            section["serve"] = front
    return toml(document) if document else plugins


def serves_claims(plugins: str) -> bool:
    """Return whether a section of `[plugins.*]` tables serves its devices by Dynamic Resource Allocation."""
    sections = _read(plugins).get("plugins")
    known = sections.values() if isinstance(sections, dict) else ()
    return any(isinstance(one, dict) and one.get("serve") == "dra" for one in known)


def _read(plugins: str) -> dict[str, Any]:
    try:
        return tomllib.loads(plugins)
    except tomllib.TOMLDecodeError:
        return {}
