"""Reserved addresses that no container has any more, on nodes whose runtime never calls GC.

Owns: the evidence (libcni's cache, the network namespaces of this node and their addresses), what follows from it for
each reservation, and freeing.
Refuses: to free on doubt. An address that no namespace shows may still be somebody's (a virtual machine has that of its
pod), so that without a word of libcni's cache only an administrator can say so. What the daemon itself attached needs
nothing of this: it sees the end of its namespaces.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nodeplug import InvalidNetns, Netns
from nodeplug_net.ipam.ranges import Address
from nodeplug_net.ipam.store import Owner, Store
from nodeplug_net.netlink.links import links_in

CACHE_DIR: Final = Path("/var/lib/cni/results")
"""Where libcni keeps the results of ADD (libcni/api.go, CacheDir)."""
SETTLED: Final = 600.0
"""Seconds after which a reservation is no part of an ADD that still runs."""
State = Literal["held", "unknown", "left over"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """An address, and whose it is.

    Attributes:
        owner: container id and interface; the interface is empty in files of old versions.
        written: when, in seconds since the epoch.
    """

    network: str
    address: Address
    owner: Owner
    written: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the evidence, and why."""

    reservation: Reservation
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a node shows of its containers.

    Attributes:
        namespaces: CNI_NETNS of what libcni's cache knows, by network, container id and interface.
        addresses: a namespace that has an address, by address.
    """

    namespaces: Mapping[tuple[str, str, str], str]
    addresses: Mapping[Address, str]

    @classmethod
    def gather(cls, caches: Iterable[Path] = (CACHE_DIR,)) -> "Evidence":
        """Look at this node: every namespace that is mounted or has a process.

        Args:
            caches: the folders in which libcni keeps results.

        Raises:
            PluginError: some namespace cannot be seen.
            OSError: the kernel refuses.
        """
        return cls(dict(_cached(caches)), dict(_addresses()))

    def judge(self, one: Reservation) -> Verdict:
        """Say whether a reservation is held."""
        if (where := self.addresses.get(one.address)) is not None:
            return Verdict(one, "held", f"network namespace {where} has the address")
        paths = self._paths(one)
        if found := [path for path in paths if _exists(path)]:
            return Verdict(one, "held", f"network namespace {found[0]} of its container exists")
        if (age := time.time() - one.written) < SETTLED:
            return Verdict(one, "held", f"it was reserved {age:.0f} s ago")
        if not paths:
            why = "libcni's cache does not know its container, and no network namespace of this node has the address"
            return Verdict(one, "unknown", why)
        if unseen := [path for path in paths if _exists(path) is None]:
            return Verdict(one, "unknown", f"the folder of {unseen[0]}, its container's namespace, does not exist here")
        return Verdict(one, "left over", f"network namespace {paths[0]} of its container is gone")

    def _paths(self, one: Reservation) -> list[str]:
        container, ifname = one.owner
        found = [
            path
            for (network, known, interface), path in self.namespaces.items()
            if (network, known) == (one.network, container) and ifname in {"", interface}
        ]
        return sorted(found)


def reservations(data_dir: Path, network: str = "") -> Iterator[Reservation]:
    """List what is reserved below a folder, of one network or of all."""
    for folder in sorted(data_dir.glob("*/")):
        if network and folder.name != network:
            continue
        store = Store(folder)
        with store.locked(create=False) as there:
            found = [(address, owner) for owner in store.owners() for address in store.held(owner)] if there else []
        for address, owner in sorted(found, key=lambda pair: (pair[0].version, int(pair[0]))):
            with suppress(FileNotFoundError):  # released meanwhile
                yield Reservation(folder.name, address, owner, (folder / str(address)).stat().st_mtime)


def free(data_dir: Path, one: Reservation) -> bool:
    """Free a reservation; return False if it has been made anew meanwhile, or is free.

    Raises:
        PluginError: the folder cannot be used.
    """
    file = data_dir / one.network / str(one.address)
    store = Store(file.parent)
    with store.locked(create=False) as there, suppress(FileNotFoundError):
        if there and file.stat().st_mtime == one.written:
            store.release([one.address], one.owner)
            return not file.exists()
    return False


def _exists(path: str) -> bool | None:
    """Say whether there is a network namespace at a path; None if even its folder is not there, as in a container."""
    if not path or not Path(path).parent.is_dir():
        return None
    try:
        Netns.open(path).close()
    except InvalidNetns:
        return False
    return True


def _cached(folders: Iterable[Path]) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Read libcni's cache; what is damaged, or of a version without these keys, says nothing."""
    for path in (path for folder in folders for path in sorted(folder.glob("*")) if path.is_file()):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_bytes())
            key = (str(found["networkName"]), str(found["containerId"]), str(found["ifName"]))
            yield key, str(found.get("netns") or "")


def _addresses() -> Iterator[tuple[Address, str]]:
    """List the addresses of every network namespace of this node, with its path."""
    for netns in Netns.every():
        with links_in(netns) as links:
            for link in links.all():
                yield from ((address.ip, netns.path) for address in links.addresses(link))
