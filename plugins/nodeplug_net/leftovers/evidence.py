"""Whether what carries the name of an attachment is somebody's, on nodes whose runtime never calls GC.

Owns: the evidence (the daemon's records, libcni's cache, the network namespaces of this node, their addresses, and the
interfaces that lead to them), and what follows from it.
Refuses: to free on doubt. An address that no namespace shows may still be somebody's (a virtual machine has that of its
pod), so that without a word of a record or of libcni's cache only an administrator can say so. What things there are,
and how they end, is in `things`.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from nodeplug import InvalidNetns, Netns, read_bounded
from nodeplug_net.attachment import HOST_VETH, OURS, Attachment
from nodeplug_net.ipam.ranges import Address
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links, links_in

CACHE_DIR: Final = Path("/var/lib/cni/results")
"""Where libcni keeps the results of ADD (libcni/api.go, CacheDir)."""
RUN_DIR: Final = Path("/run/nodeplug")
"""Where the daemon keeps what ends with the boot."""
SETTLED: Final = 600.0
"""Seconds after which a file is no part of an ADD that still runs."""
State = Literal["held", "unknown", "left over"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that carries the name of an attachment, and may be left over.

    Attributes:
        kind: of the thing, such as "address".
        name: of the thing.
        whose: the attachment; the network is empty where it is not known, the interface in files of old versions, and
            all of it where the thing names only a digest.
        label: of the attachment as the thing carries it, if it does.
        address: if it is about one.
        written: when, in seconds since the epoch; 0 if that is not known.
        held: why it is certainly not left over, or empty.
        gone: why it certainly is, or empty.
        records: files by which a daemon would bring it back.
        end: removes it; returns False if it has been made anew meanwhile, or is gone.
    """

    kind: str
    name: str
    whose: Attachment
    label: str = ""
    address: Address | None = None
    written: float = 0.0
    held: str = ""
    gone: str = ""
    records: tuple[Path, ...] = ()
    end: Callable[[], bool] = field(default=lambda: False, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the evidence, and why."""

    about: Leftover
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a node shows of its containers.

    Attributes:
        namespaces: CNI_NETNS of what the daemon's records and libcni's cache know.
        addresses: a namespace that has an address, by address.
        interfaces: the host's ends of pairs, by the label of their attachment; the other end is in a namespace that
            exists, or there would be none.
    """

    namespaces: Mapping[Attachment, frozenset[str]]
    addresses: Mapping[Address, str]
    interfaces: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def gather(cls, caches: Iterable[Path] = (CACHE_DIR,), run_dir: Path = RUN_DIR) -> "Evidence":
        """Look at this node: every namespace that is mounted or has a process.

        Args:
            caches: the folders in which libcni keeps results.
            run_dir: the daemon's.

        Raises:
            PluginError: some namespace cannot be seen.
            OSError: the kernel refuses.
        """
        namespaces: dict[Attachment, frozenset[str]] = {}
        for whose, path in [*_cached(caches), *_recorded(run_dir / "attachments")]:
            namespaces[whose] = namespaces.get(whose, frozenset()) | {path}
        return cls(namespaces, dict(_addresses()), dict(host_ends()))

    def judge(self, one: Leftover) -> Verdict:
        """Say whether a thing is held."""
        if one.held or one.gone:
            return Verdict(one, "held" if one.held else "left over", one.held or one.gone)
        if (interface := self.interfaces.get(one.label or one.whose.label)) is not None:
            return Verdict(one, "held", f"interface {interface} of its container exists")
        if one.address is not None and (where := self.addresses.get(one.address)) is not None:
            return Verdict(one, "held", f"network namespace {where} has the address")
        paths = self._paths(one.whose)
        if found := [path for path in paths if _exists(path)]:
            return Verdict(one, "held", f"network namespace {found[0]} of its container exists")
        if one.written and (age := time.time() - one.written) < SETTLED:
            return Verdict(one, "held", f"it was written {age:.0f} s ago")
        if found := [path for path in self._others(one.whose) if _exists(path)]:
            return Verdict(one, "held", f"network namespace {found[0]} of its container exists")
        if not paths:
            seen = "" if one.address is None else ", and no network namespace of this node has the address"
            return Verdict(one, "unknown", f"libcni's cache does not know its container{seen}")
        if unseen := [path for path in paths if _exists(path) is None]:
            return Verdict(one, "unknown", f"the folder of {unseen[0]}, its container's namespace, does not exist here")
        return Verdict(one, "left over", f"network namespace {paths[0]} of its container is gone")

    def _paths(self, whose: Attachment) -> list[str]:
        return sorted(
            path
            for known, paths in self.namespaces.items()
            if known.container_id == whose.container_id
            and whose.network in {"", known.network}
            and whose.ifname in {"", known.ifname}
            for path in paths
        )

    def _others(self, whose: Attachment) -> list[str]:
        """Return the namespaces of a container as other networks of it are known: enough to keep a thing, no more."""
        return sorted(
            path
            for known, paths in self.namespaces.items()
            if known.container_id == whose.container_id
            for path in paths
        )


def host_ends() -> Iterator[tuple[str, str]]:
    """List the host's ends of pairs in the calling thread's namespace: label, and name."""
    with Netlink() as netlink:
        for link in Links(netlink).all():
            if link.kind == "veth" and HOST_VETH.fullmatch(link.name) and link.alias.startswith(OURS):
                yield link.alias, link.name


def _exists(path: str) -> bool | None:
    """Say whether there is a network namespace at a path; None if even its folder is not there, as in a container."""
    if not path or not Path(path).parent.is_dir():
        return None
    try:
        Netns.open(path).close()
    except InvalidNetns:
        return False
    return True


def _cached(folders: Iterable[Path]) -> Iterator[tuple[Attachment, str]]:
    """Read libcni's cache; what is damaged, or of a version without these keys, says nothing."""
    for path in (path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(read_bounded(path))
            whose = Attachment(str(found["networkName"]), str(found["containerId"]), str(found["ifName"]))
            yield whose, str(found.get("netns") or "")


def _recorded(folder: Path) -> Iterator[tuple[Attachment, str]]:
    """Read the daemon's records of attachments, also of those that have only begun, or were delegated."""
    for path in (path for suffix in ("json", "begun", "delegated") for path in sorted(folder.glob(f"*.{suffix}"))):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(read_bounded(path))
            whose = Attachment(str(found["network"]), str(found["container_id"]), str(found["ifname"]))
            yield whose, str(found["netns"])


def _addresses() -> Iterator[tuple[Address, str]]:
    """List the addresses of every network namespace of this node, with its path."""
    for netns in Netns.every():
        with links_in(netns) as links:
            for link in links.all():
                yield from ((address.ip, netns.path) for address in links.addresses(link))
