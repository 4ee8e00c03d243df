"""The attachments that a CNI runtime caches, as libcni does: one file each.

Owns: the form of libcni's cache files (`cniCacheV1`), their place, and what a lost or damaged one means.
Refuses: to be the truth: the stand-in continues without a cached result, as libcni does.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.cni import results
from nodeplug.contract.errors import PluginError

_KIND: Final = "cniCacheV1"


@dataclass(frozen=True, slots=True)
class Attached:
    """The call and the result of one ADD (libcni, cachedInfo).

    Attributes:
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
        netns: CNI_NETNS.
        result: the final result; empty if unknown.
        args: CNI_ARGS.
        capability_args: by capability, before they are passed to the plugins that declare them.
    """

    container_id: str
    ifname: str
    netns: str
    result: Mapping[str, Any] = field(default_factory=dict)
    args: str = ""
    capability_args: Mapping[str, Any] = field(default_factory=dict)

    def result_in(self, version: str) -> Mapping[str, Any] | None:
        """Return the result in a version of the specification; None if there is none or it cannot be converted."""
        if not self.result:
            return None
        own = str(self.result.get("cniVersion") or version)
        if own == version:
            return self.result
        try:
            return dict(results.encode(results.decode(self.result, own), version))
        except (PluginError, ValueError):
            return None


@dataclass(slots=True)
class ResultCache:
    """The attachments of one network.

    Attributes:
        network: its name.
        folder: `/var/lib/cni` for most runtimes; files go below `results/`. None keeps them in memory.
    """

    network: str
    folder: Path | None = None
    _memory: dict[tuple[str, str], Attached] = field(default_factory=dict)

    def path(self, container_id: str, ifname: str) -> Path:
        """Return the file of an attachment.

        Raises:
            ValueError: there is no folder.
        """
        if self.folder is None:
            raise ValueError("this cache is in memory; give the runtime a cache_dir")
        return self.folder / "results" / f"{self.network}-{container_id}-{ifname}"

    def put(self, attached: Attached, config: Mapping[str, Any]) -> None:
        """Cache an attachment.

        Args:
            attached: what.
            config: the network list; libcni keeps it too.

        Raises:
            OSError: the file cannot be written.
        """
        if self.folder is None:
            self._memory[attached.container_id, attached.ifname] = attached
            return
        path = self.path(attached.container_id, attached.ifname)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(_document(self.network, attached, config)), encoding="utf-8")

    def get(self, container_id: str, ifname: str) -> Attached | None:
        """Return an attachment; None if its file is lost or damaged."""
        if self.folder is None:
            return self._memory.get((container_id, ifname))
        return _load(self.path(container_id, ifname), self.network)

    def drop(self, container_id: str, ifname: str) -> None:
        """Forget an attachment; succeed if it is unknown."""
        self._memory.pop((container_id, ifname), None)
        if self.folder is not None:
            self.path(container_id, ifname).unlink(missing_ok=True)

    def lose(self) -> None:
        """Lose everything, as a node whose /var/lib/cni is cleaned up."""
        for attached in self.all():
            self.drop(attached.container_id, attached.ifname)

    def all(self) -> tuple[Attached, ...]:
        """Return every valid attachment of this network, oldest first.

        Raises:
            OSError: the folder cannot be read.
        """
        if self.folder is None:
            return tuple(self._memory.values())
        folder = self.folder / "results"
        if not folder.exists():
            return ()
        paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return tuple(found for path in paths if (found := _load(path, self.network)) is not None)


def _document(network: str, attached: Attached, config: Mapping[str, Any]) -> dict[str, Any]:
    pairs = [pair.split("=", 1) for pair in attached.args.split(";") if "=" in pair]
    return {
        "kind": _KIND,
        "containerId": attached.container_id,
        "config": base64.b64encode(json.dumps(dict(config)).encode()).decode(),
        "ifName": attached.ifname,
        "networkName": network,
        "netns": attached.netns,
        "cniArgs": pairs,
        "capabilityArgs": dict(attached.capability_args),
        "result": dict(attached.result),
    }


def _load(path: Path, network: str) -> Attached | None:
    try:
        document = json.loads(path.read_bytes())
        if document["kind"] != _KIND or document["networkName"] != network:
            return None
        return Attached(
            container_id=str(document["containerId"]),
            ifname=str(document["ifName"]),
            netns=str(document.get("netns", "")),
            result=dict(document.get("result") or {}),
            args=";".join("=".join(pair) for pair in document.get("cniArgs") or ()),
            capability_args=dict(document.get("capabilityArgs") or {}),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
