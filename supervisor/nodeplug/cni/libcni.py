"""What libcni remembers of the attachments that runtimes made through it, on this node.

Owns: reading its cache (libcni/api.go: one `cniCacheV1` file per network, container and interface, written when an ADD
of a whole list has succeeded, removed by its DEL), and composing the DELs that a runtime would send by it.
Refuses: to write there: the cache is the runtime's. A damaged file, or one of a release that kept the result alone,
says nothing.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_interface
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.exec.frame import Frame

_KIND: Final = "cniCacheV1"
Where = tuple[str, str, str]
"""Network, container id and interface."""


@dataclass(frozen=True, slots=True)
class Cached:
    """One attachment.

    Attributes:
        file: in the cache.
        written: when, in seconds since the epoch.
        netns: CNI_NETNS as the runtime spelled it.
        version: of the list.
        plugins: their configurations in the order of ADD; none in files of old releases.
        capability_args: by capability, before they are passed to the plugins that declare them.
    """

    file: Path
    written: float
    where: Where
    netns: str
    version: str = ""
    plugins: tuple[Mapping[str, Any], ...] = ()
    args: str = ""
    capability_args: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types of the plugins, which are the names of their executables."""
        return tuple(str(plugin["type"]) for plugin in self.plugins)

    @property
    def addresses(self) -> frozenset[IPv4Address | IPv6Address]:
        """Return those of the result, whatever its version."""
        found = []
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            found += [ip_interface(one["address"]).ip for one in self.result.get("ips") or ()]
            legacy = [self.result.get(name) for name in ("ip4", "ip6")]
            found += [ip_interface(one["ip"]).ip for one in legacy if one]
        return frozenset(found)

    def deletions(self, path: str) -> Iterator[Frame]:
        """Compose the DEL of each plugin, in the order of DELs, without a namespace; `path` is CNI_PATH."""
        network, container_id, ifname = self.where
        env = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": container_id, "CNI_IFNAME": ifname, "CNI_NETNS": ""}
        env |= {"CNI_ARGS": self.args, "CNI_PATH": path}
        for plugin in reversed(self.plugins):
            declared = plugin.get("capabilities") or {}
            wanted = {name: value for name, value in self.capability_args.items() if declared.get(name)}
            config = {**plugin, "name": network, "cniVersion": self.version}
            config |= {"runtimeConfig": wanted} if wanted else {}
            config |= {"prevResult": dict(self.result)} if self.result else {}
            yield Frame("cni", str(plugin["type"]), (), env, json.dumps(config).encode())


def cached(folders: Iterable[Path]) -> list[Cached]:
    """Read caches, such as `/var/lib/cni/results`; a folder that is not there is empty.

    Raises:
        OSError: a folder cannot be read.
    """
    found = []
    for path in (path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            found.append(_read(path))
    return found


def _read(path: Path) -> Cached:
    written, document = path.stat().st_mtime, json.loads(read_bounded(path))
    if document["kind"] != _KIND:
        raise ValueError(document["kind"])
    config = json.loads(base64.b64decode(document.get("config") or "", validate=True) or b"{}")
    plugins = config.get("plugins") or ([config] if "type" in config else [])
    where = (str(document["networkName"]), str(document["containerId"]), str(document["ifName"]))
    return Cached(
        path,
        written,
        where,
        str(document.get("netns") or ""),
        str(config.get("cniVersion") or ""),
        tuple(dict(one) for one in plugins if one["type"]),
        ";".join("=".join(pair) for pair in document.get("cniArgs") or ()),
        dict(document.get("capabilityArgs") or {}),
        dict(document.get("result") or {}),
    )
