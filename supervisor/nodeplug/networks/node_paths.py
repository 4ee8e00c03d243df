"""Which paths of the node a network may name whose configuration comes from the cluster.

A network's plugins work as root, so a path in an object of the cluster is one that its author reads or writes as root.
The keys are those of the bundled plugins; a foreign plugin may have others, of which nothing is known here.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from nodeplug.contract.errors import clip

KEYS: Final = frozenset({"datadir", "resolvconf", "daemonsocketpath", "confdir", "clusternetwork"})
"""Keys that name a path, in lower case. They count at any depth: a plugin may delegate with what is below any key."""
_NAMES: Final = frozenset({"clusternetwork"})
"""Those of them whose value is a path only if it begins with `/`."""


def refusal(conflist: Any, allowed: Collection[str]) -> str:
    """Return why a network is refused, with the first path that is not allowed; empty if all are allowed.

    Args:
        conflist: a network configuration, or a list of plugins, as JSON has it; may be anything.
        allowed: paths, each with all that is below it.
    """
    for key, path in named(conflist):
        if not is_allowed(path, allowed):
            told = ", ".join(sorted(allowed)) or "none"
            return (
                f"{key} is {clip(path, 200)!r}, and networks of the cluster may name only what `paths` of [networks] "
                f"allows on this node: {told}"
            )
    return ""


def refusal_of_text(config: str, allowed: Collection[str]) -> str:
    """Return the same for a configuration as text; empty if it is no JSON, which whoever runs it refuses."""
    try:
        return refusal(json.loads(config), allowed)
    except ValueError:
        return ""
    except RecursionError:  # whoever parses it elsewhere may come through
        return "it is nested too deeply"


def is_allowed(path: str, allowed: Collection[str]) -> bool:
    """Return whether a path is allowed, or below one that is."""
    named_path = PurePosixPath(path)
    if not named_path.is_absolute() or ".." in named_path.parts or "\0" in path:
        return False
    return any(named_path.is_relative_to(one) for one in allowed)


def named(conflist: Any) -> Iterator[tuple[str, str]]:
    """Yield each key that names a path, as `parent.key`, with the path."""
    waiting: list[tuple[str, Any]] = [("", conflist)]
    while waiting:
        prefix, value = waiting.pop()
        if isinstance(value, list):
            waiting += [(prefix, one) for one in reversed(value)]
        elif isinstance(value, Mapping):
            for key, below in value.items():
                folded = _folded(key)
                if folded in KEYS and isinstance(below, str) and below and (folded not in _NAMES or below[0] == "/"):
                    yield f"{prefix}{key}", below
            waiting += [(f"{prefix}{key}.", below) for key, below in reversed(list(value.items()))]


def _folded(key: Any) -> str:
    """Fold a key as the widest of its readers does: Go matches `\u017f` with `s`."""
    return str(key).casefold()
