"""Network configuration lists: which CNI version they are installed in, and which list the runtime takes.

Owns: choosing `cniVersion` by the runtime and the plugins of the list, and the warning when another list sorts first.
Refuses: to change a list of any other version, and to write files (see `nodeplug.install.files`).

Version 1.1.0 adds STATUS and GC, from containerd 2.0 and CRI-O 1.33 on. containerd 1.x loads such a list and then fails
every ADD, and so does a plugin that does not know the version.
"""

import json
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from nodeplug.config import Paths
from nodeplug.install import runtimes
from nodeplug.install.needs import configurations
from nodeplug.install.ownership import is_our_entrypoint, our_list
from nodeplug.process.environment import copy_environment

Wanted = Literal["auto", "file", "1.0.0", "1.1.0"]
"""Which version to install a list in: the one the runtime supports, the file's own, or this one."""
OLD: Final = "1.0.0"
NEW: Final = "1.1.0"
_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 33)}
_TIMEOUT: Final = 5.0


def choose(name: str, data: bytes, paths: Paths, claims: Collection[str], wanted: Wanted = "auto") -> tuple[bytes, str]:
    """Return a list in the version that the runtime and the list's plugins support, and the reason for it.

    Anything that is not a list is returned unchanged, and refused elsewhere. Plugins in `claims` support every version.
    """
    try:
        document: Any = json.loads(data)
        written = document["cniVersion"]
    except (ValueError, KeyError, TypeError):
        return data, ""
    if wanted == "file" or (wanted == "auto" and written not in {OLD, NEW}):
        return data, f"{name}: cniVersion {written}, as the file says"
    before = our_list(paths.cni_conf / name).get("cniVersion")
    version, why = (wanted, "as it was asked for") if wanted != "auto" else _best(document, before, paths, claims)
    document["cniVersion"] = version
    chosen = data if version == written else json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    return chosen, f"{name}: cniVersion {version}, {why}"


def _best(document: Mapping[str, Any], before: object, paths: Paths, claims: Collection[str]) -> tuple[str, str]:
    found = runtimes.find(paths)
    if not found:
        return str(document["cniVersion"]), "as the file says: no container runtime was found here"
    silent = [runtime for runtime in found if not any(runtime.version)]
    for runtime in found:
        if runtime not in silent and runtime.version < _SINCE[runtime.name]:
            return OLD, f"for {runtime} takes no newer one"
    for plugin in document.get("plugins") or ():
        kind = str(plugin.get("type", "")) if isinstance(plugin, dict) else ""
        if kind and kind not in claims and not _knows(paths.cni_bin / kind):
            return OLD, f"for the plugin {kind} knows no newer one"
    if silent:
        why = f"{silent[0].name} does not tell its version ({silent[0].how})"
        return (NEW, f"as it is installed: {why}") if before == NEW else (OLD, f"which every release takes: {why}")
    return NEW, f"so that {' and '.join(map(str, found))} asks for STATUS and GC"


def _knows(program: Path) -> bool:
    """Whether a plugin supports the new version; one that is not installed yet does not count against it."""
    if not program.is_file() or is_our_entrypoint(program):
        return True
    try:
        done = subprocess.run(
            [program],
            input=b'{"cniVersion":"1.1.0"}',
            env={**copy_environment(), "CNI_COMMAND": "VERSION", "CNI_PATH": str(program.parent)},
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
        return NEW in json.loads(done.stdout).get("supportedVersions", ())
    except (OSError, ValueError, AttributeError, subprocess.TimeoutExpired):
        return False


def not_first(names: Collection[str], conf: Path) -> str:
    """Return a warning if a runtime would take a list other than these, else an empty string."""
    first = next(iter(configurations(conf)), None)
    if not names or first is None or first.name in names:
        return ""
    return (
        f"{first} comes before {', '.join(sorted(names))}: runtimes take the first by name as the node's network; "
        "remove it, or choose a name that comes before"
    )
