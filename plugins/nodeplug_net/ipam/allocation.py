"""Addresses for attachments: host-local's rules on host-local's folder.

Owns: allocation, which returns the same addresses to a repeated request, release, check, garbage collection and free
counts; and the release of addresses that a reboot left behind.
Refuses: links. The bridge calls this in-process where the reference executes a second program.

After a reboot every container is gone but its files are not. A file is released when two things agree: the journal, or
the folder's own lock, says that an earlier boot of this machine used the folder, and the file is older than this boot.
Files written since the boot stay. If the clock was wrong at boot, files may look younger and stay too: GC releases
those.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from pathlib import Path
from typing import Final

from nodeplug import (
    CniAttachmentRequest,
    CniCheck,
    CniGc,
    CniIp,
    CniRequest,
    CniResult,
    Exhausted,
    Host,
    InvalidRequest,
    NotReady,
    PluginError,
    TryAgain,
)
from nodeplug_net.ipam.config import IpamConfig, folder_of, has_ranges, parse_config
from nodeplug_net.ipam.kept import Kept, workload_of
from nodeplug_net.ipam.ranges import Address, RangeSet
from nodeplug_net.ipam.store import Owner, Store

_RECOVERING: Final = 2.0
"""Timeout for the lock of one pool during start, in seconds."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What ADD got.

    Attributes:
        result: addresses, routes and dns.
        fresh: the addresses that this call reserved, to be released if the rest of ADD fails.
    """

    result: CniResult
    fresh: tuple[Address, ...]


def boot_moment() -> float:
    """Return when this machine booted, in seconds since the epoch, by the current clock."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Ipam:
    """The address pools of one plugin. Any thread may call it: each pool's flock is the only lock.

    Attributes:
        host: for the journal and the log.
        data_dir: where pools are unless `ipam.dataDir` says otherwise.
        booted: returns the time of boot.
    """

    host: Host
    data_dir: Path
    booted: Callable[[], float] = boot_moment
    _stores: dict[Path, Store] = field(default_factory=dict)
    _known: set[Path] = field(default_factory=set)
    _kept: Kept = field(init=False)

    def __post_init__(self) -> None:
        self._kept = Kept(self.host)

    def recover(self) -> None:
        """Release what an earlier boot left in every pool that the journal knows, or that lies in `data_dir`.

        A pool that is not in the journal may be another section's: it is released, but not recorded as this one's.
        """
        entries = [entry for entry in self.host.journal.entries() if entry.phase == "pool"]
        known = [Path(folder) for entry in entries if isinstance(folder := entry.data.get("folder"), str)]
        beside = [lock.parent for lock in sorted(self.data_dir.glob("*/lock"))]
        for folder in dict.fromkeys([*known, *beside]):
            try:
                self._recover(folder, known=folder in known)
            except TryAgain as error:  # the next ADD in that pool does it
                self.host.log.warning("what an earlier boot left is not released yet: %s", error)

    def _recover(self, folder: Path, *, known: bool) -> None:
        store = self._store(folder)
        with store.locked(create=False, deadline=time.monotonic() + _RECOVERING) as exists:
            self._kept.waiting(folder, None, store.taken)
            if exists and known:
                self._notice(store)
            elif exists and store.boot():
                self._release(store, stale=False)
            elif not exists and known and _has_others(folder.parent):
                self.host.journal.remove(f"pool {folder}")  # an administrator has removed the network

    def allocate(self, request: CniAttachmentRequest) -> Allocation:
        """Reserve one address from each range set, or return those that the attachment already holds.

        Raises:
            InvalidRequest: the configuration or a requested address is wrong.
            Exhausted: a range set has no free address.
        """
        config = parse_config(request, self.data_dir)
        store = self._store(config.folder)
        owner = (request.container_id, request.ifname)
        fresh: list[Address] = []
        with store.locked(create=True, deadline=request.deadline):
            self._notice(store)
            store.keep(owner)
            try:
                ips = self._allocate(store, config, request, fresh)
            except BaseException:
                store.release(fresh, owner)
                raise
        return Allocation(CniResult(ips=ips, routes=config.routes, dns=config.dns), tuple(fresh))

    def _allocate(
        self, store: Store, config: IpamConfig, request: CniAttachmentRequest, fresh: list[Address]
    ) -> tuple[CniIp, ...]:
        owner = (request.container_id, request.ifname)
        if config.keep_for is None:
            return _choose(store, config, Wishes(owner), fresh)
        workload = workload_of(request)
        waiting = self._kept.waiting(store.folder, workload, store.taken)
        had = self._kept.of(store.folder, workload) if workload is not None else ()
        ips = _choose(store, config, Wishes(owner, had, waiting), fresh)
        if workload is not None:
            self._kept.note(store.folder, workload, tuple(ip.address.ip for ip in ips), config.keep_for)
        return ips

    def release(self, request: CniAttachmentRequest, only: tuple[Address, ...] | None = None) -> None:
        """Release what an attachment holds, or only some of it; succeed if that is nothing."""
        store = self._store(folder_of(request, self.data_dir))
        owner = (request.container_id, request.ifname)
        with store.locked(create=False, deadline=request.deadline) as exists:
            if not exists:
                return
            if only is None:
                store.release_all(owner)
            else:
                store.release(list(only), owner)

    def check(self, request: CniCheck) -> None:
        """Confirm that the attachment holds the addresses of its result.

        Raises:
            PluginError: it holds none, or others.
        """
        config = parse_config(request, self.data_dir)
        store = self._store(config.folder)
        owner = (request.container_id, request.ifname)
        with store.locked(create=False, deadline=request.deadline) as exists:
            held = store.found(owner) if exists else []
        if not held:
            raise PluginError(
                f"host-local: Failed to find address added by container {request.container_id}",
                details=f"looked for interface {request.ifname} in {config.folder}; DEL and ADD the attachment",
            )
        expected = {ip.address.ip for ip in request.prev_result.ips}
        lost = [str(ip) for ip in expected if any(ip in ranges for ranges in config.ranges) and ip not in held]
        if lost:
            raise PluginError(f"address {', '.join(lost)} is not reserved for container {request.container_id}")

    def collect(self, request: CniGc) -> None:
        """Release every address of this network that belongs to no valid attachment."""
        if request.valid is None:
            return
        valid = {(one.container_id, one.ifname) for one in request.valid}
        containers = {one.container_id for one in request.valid}
        store = self._store(folder_of(request, self.data_dir))
        with store.locked(create=False, deadline=request.deadline) as exists:
            if exists:
                store.review()
            for owner in store.owners() if exists else ():
                if owner not in valid and not (owner[1] == "" and owner[0] in containers):
                    freed = store.held(owner)
                    store.release(freed, owner)
                    self.host.log.info("released %s of %s in network %s", freed, owner[0], request.network)

    def owners(self, request: CniRequest) -> list[tuple[Owner, Address]]:
        """List who holds which address of a network; mistakes in the keys of ranges and routes do not matter."""
        store = self._store(folder_of(request, self.data_dir))
        with store.locked(create=False, deadline=request.deadline) as exists:
            return [(owner, address) for owner in store.owners() for address in store.held(owner)] if exists else []

    def leases(self, request: CniRequest) -> list[tuple[Owner, IPv4Interface | IPv6Interface]]:
        """List who holds which address of a network's ranges, each with the prefix of its range."""
        config = parse_config(request, self.data_dir)
        store = self._store(config.folder)
        with store.locked(create=False, deadline=request.deadline) as exists:
            held = [(owner, address) for owner in store.owners() for address in store.held(owner)] if exists else []
        return [
            (owner, _ip(ranges, address).address)
            for owner, address in held
            for ranges in config.ranges
            if address in ranges
        ]

    def status(self, request: CniRequest) -> None:
        """Confirm that the next ADD would get an address.

        Raises:
            NotReady: a range set is used up; the message has the counts.
        """
        if not has_ranges(request):
            return
        config = parse_config(request, self.data_dir)
        store = self._store(config.folder)
        with store.locked(create=False, deadline=request.deadline) as exists:
            if exists and not store.is_writable:
                raise NotReady(f"network {request.network}: {store.folder}, where addresses are reserved, is read-only")
            if exists:  # else a pool full of an earlier boot's addresses would prevent the ADD that releases them
                self._notice(store)
            used = [store.in_use(ranges) if exists else 0 for ranges in config.allocatable]
        full = [
            f"range set {ranges} has 0 of {ranges.size()} addresses free"
            for ranges, count in zip(config.allocatable, used, strict=True)
            if count >= ranges.size()
        ]
        if full:
            raise NotReady(f"network {request.network}: {'; '.join(full)}; delete containers or widen the range")

    def _store(self, folder: Path) -> Store:
        return self._stores.setdefault(folder, Store(folder))

    def _notice(self, store: Store) -> None:
        """Record, once per boot, that a pool is in use; first release what an earlier boot left. Needs the lock."""
        folder, journal = store.folder, self.host.journal
        if folder in self._known:
            return
        entry = journal.read(f"pool {folder}")
        stale = entry is not None and journal.is_stale(entry)
        self._release(store, stale=stale)
        if entry is None or stale:
            try:
                journal.write(f"pool {folder}", phase="pool", data={"folder": str(folder)})
            except PluginError as error:  # the lock file says it, too; pods must be able to terminate
                self.host.log.warning("the pool %s is used without a record of it: %s", folder, error)
                return
        self._known.add(folder)

    def _release(self, store: Store, *, stale: bool) -> None:
        """Release what an earlier boot left, if the folder's lock or a stale record of it says so. Needs the lock."""
        noted, boot = store.boot(), self.host.boot_id
        if noted != boot and (noted or stale):
            freed = store.release_older(self.booted())
            if freed:
                self.host.log.info(
                    "released %d addresses in %s that are older than this boot", len(freed), store.folder
                )
        if noted != boot:
            store.set_boot(boot)


def _has_others(data_dir: Path) -> bool:
    """Whether a folder of networks has any: an empty one may be a mount point whose disk is away."""
    try:
        return any(data_dir.iterdir())
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Wishes:
    """Who wants addresses, and which rather than others.

    Attributes:
        owner: who.
        had: what it would like to have back, if nobody has it.
        waiting: what waits for others, and is given out last.
    """

    owner: Owner
    had: Sequence[Address] = ()
    waiting: AbstractSet[Address] = frozenset()


def _choose(store: Store, config: IpamConfig, wishes: Wishes, fresh: list[Address]) -> tuple[CniIp, ...]:
    wanted = list(config.requested)
    held = store.held(wishes.owner)
    chosen: list[tuple[RangeSet, Address]] = []
    for index, (whole, ranges) in enumerate(zip(config.ranges, config.allocatable, strict=True)):
        had = [address for address in held if address in whole]  # it may have been excluded since
        request = next((address for address in wanted if address in ranges or address in had), None)
        if request is not None:
            wanted.remove(request)
        if request in had or (request is None and had):
            address = request or had[0]
        else:
            with _of_range(index):
                address = _reserve(store, ranges, index, wishes, request)
            fresh.append(address)
        chosen.append((whole, address))
    if wanted:
        raise InvalidRequest(
            f"failed to allocate all requested IPs: {' '.join(map(str, wanted))}",
            details=f"in none of {'; '.join(map(str, config.allocatable))}",
        )
    return tuple(_ip(ranges, address) for ranges, address in chosen)


def _ip(ranges: RangeSet, address: Address) -> CniIp:
    member = ranges.range_of(address)
    return CniIp(ip_interface((address, member.network.prefixlen)), gateway=member.address(member.gateway))


@contextmanager
def _of_range(index: int) -> Iterator[None]:
    """Name the range set in the sentence of an error, as the reference does."""
    try:
        yield
    except (Exhausted, InvalidRequest) as error:
        raise type(error)(f"failed to allocate for range {index}: {error.message}", details=error.details) from error


def _reserve(store: Store, ranges: RangeSet, index: int, wishes: Wishes, requested: Address | None) -> Address:
    if requested is None:
        return _reserve_next(store, ranges, index, wishes)
    member = ranges.range_of(requested)
    if int(requested) == member.gateway:
        raise InvalidRequest(f"requested ip {requested} is subnet's gateway")
    if int(requested) in ranges.reserved():
        network = f"{requested} is the network or broadcast address of {member.network}"
        raise InvalidRequest(
            f"requested IP address {requested} is not available in range set {ranges}", details=network
        )
    if not store.reserve(requested, wishes.owner):
        holder = store.owner_of(requested)
        raise Exhausted(
            f"requested IP address {requested} is not available in range set {ranges}",
            details=f"it has been allocated to {holder[0] if holder else 'another container'}",
        )
    store.set_last(index, requested)
    return requested


def _reserve_next(store: Store, ranges: RangeSet, index: int, wishes: Wishes) -> Address:
    for had in wishes.had:
        if had in ranges and int(had) not in ranges.reserved() and store.reserve(had, wishes.owner):
            return had
    waiting = {int(one) for one in wishes.waiting if one.version == ranges.version}
    while True:
        taken, last = store.taken[ranges.version], store.last(index)
        address = ranges.choose(taken | waiting, last) if waiting else None
        if address is None:
            address = ranges.choose(taken, last)
        if address is None:
            raise Exhausted(
                f"no IP addresses available in range set: {ranges}",
                details=f"{store.in_use(ranges)} of {ranges.size()} in use, folder {store.folder}",
            )
        if store.reserve(address, wishes.owner):
            store.set_last(index, address)
            return address
