r"""The folder in which addresses are reserved, shared with the reference plugin host-local.

Owns: `<dataDir>/<network>/`: one file per address (mode 0600, created with O_EXCL, content `<id>\r\n<ifname>`, by old
versions the id alone), `last_reserved_ip.<n>`, and flock(2) on `lock`, which lets this daemon and the reference's
executable work on one folder at a time. The reference never reads `lock`; here it says which boot used the folder.
Refuses: to decide which address is next (see `ranges`), and to trust its memory: what it remembers of the folder holds
as long as the folder's modification time is the one that it set itself, a reservation succeeds only through O_EXCL,
and a file is read again before it counts as somebody's. A file that is rewritten in place leaves the folder's time as
it was: who is not found is looked for in all files that have changed (see `review`). What is not a file but has an
address as its name makes that address taken, and is nobody's.

The cache matters: the reference reads every file of the folder for each ADD and DEL.
"""

import errno
import ipaddress
import logging
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import PluginError
from nodeplug_net.ipam.pool_lock import PoolLock
from nodeplug_net.ipam.ranges import Address, RangeSet

LOG: Final = logging.getLogger(__name__)
Owner = tuple[str, str]
"""Container id and interface name; the name is empty in files of old versions."""
_LAST: Final = "last_reserved_ip."
_USUAL: Final = 4096
_FILE_LIMIT: Final = 1 << 18
"""Bytes that are read of a file: an environment variable, and so a container id, has 128 KiB at most (execve(2))."""
_ENDED_LIMIT: Final = 1024
"""Owners that are remembered as released; each other one that holds nothing costs a look at all files."""


def _read(path: str) -> str | None:
    """Read a small file; plain system calls, because `Path.read_text` takes six times as long.

    Raises:
        OSError: it is something else, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        content = os.read(descriptor, _USUAL)
        if len(content) == _USUAL:
            content += os.read(descriptor, _FILE_LIMIT)
        elif not content and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return content.decode("utf-8", "replace")
    finally:
        os.close(descriptor)


def parse_owner(text: str) -> Owner:
    """Read the content of an address' file; older releases of the reference wrote no interface."""
    container_id, _, ifname = text.strip().partition("\n")
    return container_id.strip(), ifname.strip()


def parse_address(name: str) -> Address | None:
    """Read the name of a file; None if it is not that of an address."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


@dataclass(slots=True)
class Store:
    """The reservations of one network. Every method but `locked` needs the lock.

    Attributes:
        folder: `<dataDir>/<network>`.
        taken: the reserved addresses as numbers, by family.
    """

    folder: Path
    taken: dict[int, set[int]] = field(default_factory=lambda: {4: set(), 6: set()})
    _owned: dict[Owner, set[Address]] = field(default_factory=dict)
    _stamp: tuple[int, int, int] | None = None
    _changed: bool = False
    _last: dict[int, Address | None] = field(default_factory=dict)
    _odd: dict[str, str] = field(default_factory=dict)
    _due: dict[Address, Owner] = field(default_factory=dict)
    _seen: dict[Address, tuple[int, int, int]] = field(default_factory=dict)
    _ended: dict[Owner, None] = field(default_factory=dict)
    _lock: PoolLock = field(init=False)

    def __post_init__(self) -> None:
        self._lock = PoolLock(self.folder)

    @contextmanager
    def locked(self, *, create: bool, deadline: float = math.inf) -> Iterator[bool]:
        """Hold the folder's lock; inside, the cache is valid.

        Args:
            create: create the folder if it is missing.
            deadline: `time.monotonic()` until which others may hold it.

        Yields:
            Whether the folder exists.

        Raises:
            PluginError: the folder cannot be used.
            TryAgain: another process holds the lock until the deadline.
        """
        with self._lock.held(create=create, deadline=deadline) as exists:
            if not exists:
                yield False
                return
            try:
                self._refresh()
                self._release_due()
                yield True
            finally:
                if self._changed and self._stamp is not None:
                    self._stamp = self._seal(self._stamp)
                self._changed = False

    @property
    def is_writable(self) -> bool:
        """Whether an address could be reserved; false on a read-only disk even for root."""
        return os.access(self.folder, os.W_OK)

    def boot(self) -> str:
        """Return the id of the boot that used the folder last; empty if unknown."""
        try:
            return _read(f"{self.folder}/lock") or ""
        except OSError:
            return ""

    def set_boot(self, boot_id: str) -> None:
        """Record the boot that uses the folder; otherwise only the journal's record says it."""
        with suppress(OSError):
            descriptor = os.open(self.folder / "lock", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(boot_id)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = self.folder.stat()
        except FileNotFoundError:  # removed under the lock by an administrator
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _seal(self, stamp: tuple[int, int, int]) -> tuple[int, int, int] | None:
        """Give a folder that was changed or read here a unique modification time; return its stamp.

        The kernel's are ticks of some milliseconds on most filesystems: another program's change in the same tick would
        leave the same time. Where a time is not kept (seconds only, read-only), each call reads.
        """
        now = time.time_ns()
        try:
            os.utime(self.folder, ns=(now, now))
        except OSError:
            return None
        return stamp[0], stamp[1], now

    def _refresh(self) -> None:
        """Read the folder again if another program changed it.

        An empty file was left by a program that was killed, holding the lock, between creating and writing it.
        """
        stamp = self._look()
        if stamp is not None and stamp == self._stamp:
            return
        self._stamp = None
        self.taken = {4: set(), 6: set()}
        self._owned, self._seen, self._last = {}, {}, {}
        for name in os.listdir(self.folder):  # noqa: PTH208  one system call per 32 KiB, no Path per address
            address = parse_address(name)
            if address is None:
                continue
            path = f"{self.folder}/{name}"
            try:
                content = _read(path)
                if content == "":
                    os.unlink(path)  # noqa: PTH108  a plain string, see above
                elif content is not None:
                    self._remember(address, parse_owner(content))
            except OSError as error:
                self._take_out(address, path, error)
        self._stamp, self._changed = stamp, True

    def _take_out(self, address: Address, path: str, error: OSError) -> None:
        """Never allocate an address whose file cannot be read, or is not a file."""
        reason = error.strerror or str(error)
        if self._odd.get(path) != reason:
            LOG.warning("address %s is not given out: %s: %s; remove what is there", address, path, reason)
        self._odd[path] = reason
        self.taken[address.version].add(int(address))

    def _remember(self, address: Address, owner: Owner) -> None:
        self._ended.pop(owner, None)
        self.taken[address.version].add(int(address))
        self._owned.setdefault(owner, set()).add(address)

    def _forget(self, address: Address, owner: Owner) -> None:
        self._seen.pop(address, None)
        self.taken[address.version].discard(int(address))
        owned = self._owned.get(owner, set())
        owned.discard(address)
        if not owned:
            self._owned.pop(owner, None)

    def held(self, owner: Owner) -> list[Address]:
        """Return the addresses of an owner; if there are none, those of old files, which name only the container."""
        for candidate in (owner, (owner[0], "")):
            found = [address for address in self._owned.get(candidate, ()) if self.owner_of(address) == candidate]
            if found:
                return sorted(found, key=lambda address: (address.version, int(address)))
        return []

    def found(self, owner: Owner) -> list[Address]:
        """Return what an owner holds, also in files that somebody else has rewritten in place.

        Runtimes send DEL twice, so an owner whose addresses were released here costs no second look.
        """
        held = self.held(owner)
        if not held and owner not in self._ended:
            self.review()
            held = self.held(owner)
        self._ended[owner] = self._ended.pop(owner, None)
        if len(self._ended) > _ENDED_LIMIT:
            del self._ended[next(iter(self._ended))]
        return held

    def review(self) -> None:
        """Read again every file that has another inode, size or time than when it was reviewed last."""
        holders = [(address, owner) for owner, addresses in self._owned.items() for address in addresses]
        for address, owner in holders:
            try:
                status = os.stat(f"{self.folder}/{address}")  # noqa: PTH116  a plain string, see above
            except OSError:
                continue  # the folder has changed, and is read by the next call
            stamp = status.st_ino, status.st_size, status.st_ctime_ns
            if self._seen.get(address) == stamp:
                continue
            now = self.owner_of(address)
            if now is not None and now != owner:
                self._forget(address, owner)
                self._remember(address, now)
            self._seen[address] = stamp

    def owner_of(self, address: Address) -> Owner | None:
        """Read who holds an address; None if nobody does, or if it cannot be read."""
        try:
            content = _read(f"{self.folder}/{address}")
        except OSError:
            return None
        return None if content is None else parse_owner(content)

    def owners(self) -> list[Owner]:
        """Return all owners of addresses."""
        return list(self._owned)

    def reserve(self, address: Address, owner: Owner) -> bool:
        """Reserve an address; False if it is held.

        Raises:
            PluginError: the file cannot be written.
        """
        path = f"{self.folder}/{address}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self.taken[address.version].add(int(address))
            self._stamp = None  # there is more than is cached, so the next call reads
            return False
        except OSError as error:
            raise PluginError(f"cannot reserve {address}: {path}: {error.strerror}") from error
        try:
            os.write(descriptor, f"{owner[0]}\r\n{owner[1]}".encode())
        except OSError as error:
            os.unlink(path)  # noqa: PTH108  a plain string, see above
            raise PluginError(f"cannot reserve {address}: {path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        self._changed = True
        self._remember(address, owner)
        return True

    def release(self, addresses: list[Address], owner: Owner) -> None:
        """Free addresses of an owner, unless another one holds them now.

        What a disk refuses to remove stays reserved, and is freed by a later call that holds the lock.
        """
        for address in addresses:
            if self.owner_of(address) in {owner, (owner[0], "")}:
                self._free(address, owner)
            else:
                self._forget_of(address, owner)

    def release_all(self, owner: Owner) -> None:
        """Free what an owner holds, as `release` does."""
        for address in self.found(owner):
            self._free(address, owner)

    def _free(self, address: Address, owner: Owner) -> None:
        path = f"{self.folder}/{address}"
        self._changed = True
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  a plain string, see above
        except OSError as error:
            if address not in self._due:
                LOG.warning("address %s stays reserved for now: %s: %s", address, path, error.strerror)
            self._due[address] = owner
            return
        self._forget_of(address, owner)

    def _forget_of(self, address: Address, owner: Owner) -> None:
        self._due.pop(address, None)
        self._forget(address, owner)
        self._forget(address, (owner[0], ""))

    def _release_due(self) -> None:
        for address, owner in list(self._due.items()):
            self.release([address], owner)

    def keep(self, owner: Owner) -> None:
        """Free nothing more of an owner: it is being attached again."""
        for address in [one for one, former in self._due.items() if former == owner]:
            del self._due[address]

    def release_older(self, moment: float) -> list[Address]:
        """Free every address that was reserved before a moment (seconds since the epoch); return them."""
        freed = []
        for owner, addresses in list(self._owned.items()):
            for address in list(addresses):
                with suppress(FileNotFoundError):
                    if (self.folder / str(address)).stat().st_mtime < moment:
                        self.release([address], owner)
                        freed.append(address)
        return freed

    def last(self, index: int) -> Address | None:
        """Return the last address of range set `index`; whoever writes another one has reserved it, too."""
        if index not in self._last:
            with suppress(OSError):
                content = _read(f"{self.folder}/{_LAST}{index}")
                self._last[index] = None if content is None else parse_address(content.strip())
        return self._last.get(index)

    def set_last(self, index: int, address: Address) -> None:
        """Record the last address of range set `index`; losing it only costs a longer search.

        The file is never truncated first: ext4 would flush it on close (auto_da_alloc).
        """
        text = str(address).encode("ascii")
        self._last.pop(index, None)
        with suppress(OSError):
            descriptor = os.open(
                f"{self.folder}/{_LAST}{index}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644
            )
            try:
                if os.write(descriptor, text) < os.fstat(descriptor).st_size:
                    os.ftruncate(descriptor, len(text))
            finally:
                os.close(descriptor)
            self._last[index] = address

    def in_use(self, ranges: RangeSet) -> int:
        """Count the reserved addresses of a range set."""
        kept = ranges.reserved()
        return sum(
            member.start <= number <= member.end and number not in kept
            for number in self.taken[ranges.version]
            for member in ranges.ranges
        )
