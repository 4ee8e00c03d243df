"""What the node's container runtime needs before a pod can start, and whether it is there.

Owns: which network configuration the runtime takes (the first by name), and the executables it needs: the plugins of
that list and, for containerd and CRI-O, `loopback`, which they call before any list.
Refuses: to check a list that names no claim of ours.
"""

import json
import os
from collections.abc import Collection, Container
from pathlib import Path
from typing import Any, Final

from nodeplug.config import Paths
from nodeplug.contract.bounded import read_bounded
from nodeplug.install import runtimes

LOOPBACK: Final = "loopback"
_SUFFIXES: Final = frozenset({".conflist", ".conf", ".json"})


def configurations(conf: Path) -> list[Path]:
    """Return the network configurations in the order of the runtimes: the first is the node's network."""
    return sorted(path for path in conf.iterdir() if path.suffix in _SUFFIXES) if conf.is_dir() else []


def plugin_types(path: Path) -> list[str]:
    """Return the executables that a configuration names, in order; none if it cannot be read."""
    try:
        document: Any = json.loads(read_bounded(path))
        plugins = document.get("plugins") or [document]
        return [str(plugin["type"]) for plugin in plugins if plugin.get("type")]
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []


def unmet(paths: Paths, claims: Collection[str], told: Container[Path] = ()) -> list[str]:
    """Return a sentence per missing executable that the runtime needs, if its network is one of ours.

    Executables in `told` have been reported already and are left out.
    """
    try:
        first = next(iter(configurations(paths.cni_conf)), None)
    except OSError:
        return []
    types = plugin_types(first) if first is not None else []
    if first is None or not set(types) & set(claims):
        return []
    problems = [
        f"{first} names the plugin {name}, and there is no executable {paths.cni_bin / name}: no pod can start; "
        + ("run `nodeplug install`" if name in claims else "install it there")
        for name in dict.fromkeys(types)
        if not _is_executable(paths.cni_bin / name) and paths.cni_bin / name not in told
    ]
    loopback = paths.cni_bin / LOOPBACK
    callers = sorted(set(runtimes.sockets(paths).values()))
    if callers and not _is_executable(loopback) and loopback not in told:
        problems.append(
            f"{callers[0]} calls {loopback} for each pod, and there is no such executable: no pod can start; "
            + (
                "run `nodeplug install`"
                if LOOPBACK in claims
                else "enable [plugins.loopback] and run `nodeplug install`, or install the reference plugins"
            )
        )
    return problems


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
