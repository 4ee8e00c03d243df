"""The two ways in which a plugin can run: in a thread of the daemon, or in a process of its own.

Owns: their names, what `both` means, and a configuration in which plugins run in one of them.
Refuses: to know which of them is the default: a section without `isolation` is the daemon's to decide.
"""

import tomllib
from collections.abc import Collection
from typing import Final, Literal

from nodeplug.commands import toml
from nodeplug.contract.errors import InvalidRequest

Isolation = Literal["thread", "process"]
Isolations = Literal["thread", "process", "both"]
ISOLATIONS: Final[tuple[Isolation, ...]] = ("thread", "process")
IN_WORDS: Final[dict[str, str]] = {"thread": "as a thread", "process": "in a process"}


def isolations(asked: str) -> tuple[Isolation, ...]:
    """Return the ways that are asked for with `thread`, `process` or `both`.

    Raises:
        InvalidRequest: it is none of these.
    """
    found = tuple(one for one in ISOLATIONS if asked in (one, "both"))
    if not found:
        raise InvalidRequest(f"{asked!r} is no isolation; take thread, process or both")
    return found


def isolated(plugins: str, isolation: Isolation, names: Collection[str] | None = None) -> str:
    """Return `[plugins.*]` tables in which the plugins run in one way.

    Args:
        plugins: the tables, in TOML; a text that is none is returned as it is, for the daemon to say what is wrong.
        isolation: the way.
        names: the sections that run so, whatever they say; None: every section that does not say `isolation` itself.
    """
    try:
        document = tomllib.loads(plugins)
    except tomllib.TOMLDecodeError:
        return plugins
    sections = document.get("plugins")
    for name, section in sections.items() if isinstance(sections, dict) else ():
        if isinstance(section, dict) and (name in names if names is not None else "isolation" not in section):
            section["isolation"] = isolation
    return toml(document)
