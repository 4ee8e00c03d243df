"""The form of what nodeplug keeps on a node: which kinds of records there are, and the names and types in each.

Owns: which file below a node's folders is of which kind, and the comparison of two of a kind.
Refuses: values, and what others chose: a network's configuration, CNI_ARGS, and the texts of entrypoints.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from nodeplug.exec.frame import Frame

Shape = frozenset[str]
_KINDS: Final = {
    "attachment": r"run/nodeplug/attachments/.*\.json",
    "journal": r"var/lib/nodeplug/journal/([^/]+)/.*\.json",
    "mark key": r"var/lib/nodeplug/journal/flexvolume/secret-mark\.key",
    "deferred DEL": r"var/lib/nodeplug/spool/.*\.frame",
    "boot of the spool": r"var/lib/nodeplug/spool\.boot",
    "holders": r"var/lib/nodeplug/holders\.json",
    "installed": r"var/lib/nodeplug/installed\.json",
    "MPS daemon": r"run/nodeplug/plugins/gpu/mps/[^/]+/daemon\.json",
    "address": r"var/lib/cni/networks/[^/]+/[0-9a-f.:]+",
    "last address": r"var/lib/cni/networks/[^/]+/last_reserved_ip\.\d",
    "lock of addresses": r"var/lib/cni/networks/[^/]+/lock",
}
_FREE: Final = {"config", "args", "files", "request"}
"""Keys below which names are not nodeplug's."""


def kind_of(path: str, data: bytes) -> str:
    """Name the kind of a file of nodeplug's; empty for a file of somebody else."""
    for kind, pattern in _KINDS.items():
        found = re.fullmatch(pattern, path)
        if found and kind == "journal":
            return f"journal of {found[1]}: {json.loads(data)['key'].split()[0]}, {json.loads(data)['phase']}"
        if found:
            return kind
    return ""


def shape_of(kind: str, data: bytes) -> Shape:
    """Return the names and types in a file, as paths such as `data.gateways[] str`."""
    if kind == "deferred DEL":
        frame = Frame.decode(data)
        return frozenset({data[:4].decode(), frame.style, *frame.env})
    if kind in {"mark key", "boot of the spool", "lock of addresses", "last address"}:
        return frozenset({f"{len(data)} bytes"} if kind == "mark key" else {"text"})
    if kind == "address":
        ends = data.count(b"\r\n")
        return frozenset({f"{ends} line ends"})
    document = json.loads(data)
    return frozenset({f"version {document['version']}"} if "version" in document else ()) | _names("", document)


def shapes(files: Mapping[str, bytes]) -> dict[str, set[Shape]]:
    """Return the shapes of each kind among files by their paths below the root."""
    found: dict[str, set[Shape]] = {}
    for path, data in files.items():
        if kind := kind_of(path, data):
            found.setdefault(kind, set()).add(shape_of(kind, data))
    return found


def _names(place: str, value: Any) -> Shape:
    if isinstance(value, dict) and place.rpartition(".")[2] not in _FREE:
        return frozenset().union(*(_names(f"{place}.{name}".lstrip("."), one) for name, one in value.items()))
    if not isinstance(value, list):
        return frozenset({f"{place} {_type(value)}"})
    types = [_type(one) for one in value]
    if len(set(types)) > 1:  # places mean something
        return frozenset({f"{place} {types}"})
    return frozenset({f"{place} list"}).union(*(_names(f"{place}[]", one) for one in value))


def _type(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__
