"""The CDI spec of limits: a device for each limit that a container may have been given.

Owns: the names, the document, and the file, one for a node whatever the section is called.
Refuses: which limits there are (`limits` knows), and to remove the file: a container that has a name of it can start
again as long as the file is there.

A limit is a CDI device that adds nothing but a hook. Kubelet keeps the names that Allocate returns and gives them to
the runtime at each start of the container, so neither the pod nor its image has a say in the amount.

Source: Container Device Interface, SPEC.md, "CDI JSON Specification".
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug import read_bounded
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.replaced_file import replace_file

Limit = tuple[Uuid, int]
"""A card, and bytes of it."""

KIND: Final = "nodeplug.io/gpu-limit"
FILE: Final = "nodeplug-gpu-limits.json"
PYTHON: Final = "/usr/bin/python3"
SOURCE: Final = Path(__file__).with_name("hook.py").read_text(encoding="utf-8")
_VERSION: Final = "0.3.0"
_TIMEOUT: Final = 90
"""Seconds after which the runtime ends the hook, and with it the start: more than the hook waits (some 65), so that it
can say why, and less than kubelet waits for the runtime (2 min)."""


def full_name(limit: Limit) -> str:
    """Return the name by which the runtime knows a limit."""
    return f"{KIND}={_name(limit)}"


def _name(limit: Limit) -> str:
    return f"{limit[0]}.{limit[1]}"


def document(limits: Iterable[Limit], door: str, *, required: bool) -> Mapping[str, Any]:
    """Describe limits.

    Args:
        limits: of containers.
        door: the path of the daemon's socket, as the node has it.
        required: whether a container does not start without its limit.
    """
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [
            {"name": _name(one), "containerEdits": {"hooks": [_hook(one, door, required=required)]}}
            for one in sorted(limits)
        ],
        "containerEdits": {},
    }


def _hook(limit: Limit, door: str, *, required: bool) -> Mapping[str, Any]:
    card, size = limit
    without = "refuse" if required else "start"
    words = ["--socket", door, "--card", card, "--bytes", str(size), "--without", without]
    command = ["python3", "-IS", "-c", SOURCE, *words]
    return {"hookName": "createRuntime", "path": PYTHON, "args": command, "timeout": _TIMEOUT}


def write(file: Path, described: Mapping[str, Any]) -> None:
    """Bring the file in line with a document, in one step; without devices, remove it: such a spec is invalid.

    Raises:
        OSError: it cannot be written.
    """
    if not described["devices"]:
        file.unlink(missing_ok=True)
        return
    replace_file(file, json.dumps(described, indent=1).encode())


def read(file: Path) -> frozenset[Limit]:
    """Return the limits that a file describes; none where it is not there, or is no spec of limits."""
    try:
        found = json.loads(read_bounded(file))
        names = [str(one["name"]).rpartition(".") for one in found["devices"]] if found["kind"] == KIND else []
        return frozenset((Uuid(card), int(size)) for card, _, size in names)
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
