"""Attachments that nobody ends, found by what libcni remembers: for runtimes that never call GC.

Owns: judging what libcni's cache knows by the namespaces that exist, when that is done, and sending the DELs that a
runtime would. So ends what the records below /run do not tell (`orphans`): what was attached before them, by another
program, or before a reboot; and an ADD that was cut off and whose namespace lives on although its runtime is gone.
Refuses: to free on doubt. What may be in use stays, and its verdict says why; only GC or an administrator may know
better. In a container of its own the daemon may see another folder of namespaces than the runtime: where it sees none
at all, none is gone. The cache itself is the runtime's, and stays as it is.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from nodeplug.cni import codec
from nodeplug.cni.addresses import Address, everywhere
from nodeplug.cni.attachments import Attachments, Begun, Key
from nodeplug.cni.libcni import Cached, Where, cached
from nodeplug.cni.namespaces import UNKNOWN, host_or_own
from nodeplug.cni.orphans import Composed, Orphans, call_of
from nodeplug.contract.errors import InvalidNetns, PluginError
from nodeplug.contract.mounts import mounts
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniDel
from nodeplug.exec.frame import Frame
from nodeplug.process.lane import Lane

LOG: Final = logging.getLogger(__name__)
SETTLED: Final = 600.0
"""Seconds after which an ADD that has begun is none that still runs, or that a runtime is about to repeat."""
_PROC_PID_INIT_INO: Final = 0xEFFFFFFC
"""The number of the first namespace of processes (linux/proc_ns.h)."""
State = Literal["held", "unknown", "left over"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from the evidence about an attachment, and why.

    `delegated` has what its plugin asked others to attach, as far as that is recorded: claim, network, interface.
    """

    where: Where
    state: State
    why: str
    about: Cached | Begun
    delegated: tuple[tuple[str, str, str], ...] = ()

    def encode(self) -> dict[str, Any]:
        """Return it for people and programs."""
        network, container_id, ifname = self.where
        return {
            "network": network,
            "container_id": container_id,
            "ifname": ifname,
            "types": self.types,
            "delegated": [dict(zip(("claim", "network", "ifname"), one, strict=True)) for one in self.delegated],
            "state": self.state,
            "why": self.why,
        }

    @property
    def types(self) -> list[str]:
        """Return the names of its plugins."""
        if isinstance(self.about, Begun):
            return [self.about.key.claim]
        return list(self.about.types)


@dataclass(slots=True)
class Reconciliation:
    """Looks at start, and then every `interval` seconds. Event loop only.

    Attributes:
        orphans: what runs DELs that no runtime sends.
        serves: whether an enabled plugin serves an executable of this name.
        caches: libcni's folders.
        path: CNI_PATH of the DELs.
    """

    orphans: Orphans
    serves: Callable[[str], bool]
    caches: Sequence[Path] = ()
    path: str = ""
    interval: float = 300.0
    _ended: dict[Path, float] = field(default_factory=dict)
    _refused: str = ""
    _lane: Lane = field(default_factory=lambda: Lane("the look at libcni's cache", 30.0))

    async def run(self) -> None:
        """Look periodically until cancelled: a task of the daemon."""
        while True:
            try:
                await self.look()
                self._refused = ""
            except (PluginError, OSError) as error:
                if self._refused != str(error):  # once, not every few minutes
                    LOG.warning("what libcni remembers is not looked at: %s", error)
                self._refused = str(error)
            except Exception:
                LOG.exception("the look at what libcni remembers failed; it is repeated")
            await asyncio.sleep(self.interval)

    async def look(self) -> list[tuple[Verdict, bool]]:
        """End what is left over; return what was judged, and whether it has ended.

        Raises:
            Unanswered: a disk does not respond.
            PluginError: this process may not see every namespace.
            OSError: the kernel or a disk refuses.
        """
        return [(one, one.state == "left over" and await self._end(one)) for one in await self.judge()]

    async def report(self, *, dry_run: bool) -> dict[str, Any]:
        """Return what is judged, for `nodeplug net gc`; and end at once what is left over.

        Raises:
            PluginError: it cannot be judged; see `look`.
        """
        try:
            if not dry_run:
                await self.orphans.look()
            found = [(one, False) for one in await self.judge()] if dry_run else await self.look()
        except OSError as error:
            raise PluginError(f"what libcni remembers cannot be looked at: {error}") from error
        return {"attachments": [{**one.encode(), "ended": ended} for one, ended in found]}

    async def judge(self) -> list[Verdict]:
        """Judge what has no record of its own, and ADDs that were cut off; what `look` raises."""
        attachments, ended = self.orphans.records.attachments, dict(self._ended)
        return await self._lane.run(lambda: judged(attachments, self.caches, self.serves, ended))

    async def _end(self, verdict: Verdict) -> bool:
        if isinstance(verdict.about, Begun):
            return await self.orphans.end(verdict.about, verdict.why)
        one = verdict.about
        keys = [Key(name, *one.where) for name in one.types if self.serves(name)]
        records = self.orphans.records

        def is_wanted() -> bool:
            """Whether nobody has begun to attach the container anew since it was judged."""
            return not records.is_adding(one.where) and not any(map(records.attachments.has, keys))

        for frame in one.deletions(self.path):
            key = Key(frame.name, *one.where)
            if key not in keys:
                continue  # another program's, of which nothing is known here
            try:
                if not await self.orphans.delete(key, call_of(key), partial(_composed, frame), is_wanted):
                    return False
            except PluginError as error:
                LOG.warning("cannot end attachment %s of %s: %s; tried again later", key, key.claim, error)
                return False
        self._ended[one.file] = one.written
        LOG.info("ended attachment %s: %s, and no DEL came", "/".join(one.where), verdict.why)
        return True


def _composed(frame: Frame) -> Composed:
    host = host_or_own(UNKNOWN)
    try:
        request = codec.decode(frame, (host,))
    except PluginError:
        host.close()
        raise
    if not isinstance(request, CniDel):
        raise TypeError(frame.env["CNI_COMMAND"])
    return request, (host,)


def judged(
    attachments: Attachments, caches: Sequence[Path], serves: Callable[[str], bool], ended: Mapping[Path, float]
) -> list[Verdict]:
    """Judge the attachments of caches, those excepted that have been ended, and ADDs that were cut off."""
    known = cached(caches)
    recorded = {(one.key.network, one.key.container_id, one.key.ifname) for one in attachments.list()}
    waiting = [one for one in known if ended.get(one.file) != one.written]
    ours = [one for one in waiting if one.where not in recorded and any(map(serves, one.types))]
    gone = [(one, *_namespace(one.netns, one.written)) for one in ours]
    addresses = everywhere() if any(state == "left over" for _, state, _ in gone) else {}
    verdicts = [_with_addresses(one, state, why, addresses) for one, state, why in gone]
    places = {one.where for one in known}
    found = [*verdicts, *(_cut_off(one, places) for one in attachments.begun())]
    return _with_delegated(found, attachments.delegated) if found else []


def _with_delegated(verdicts: Iterable[Verdict], delegated: Attachments) -> list[Verdict]:
    known: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for one in delegated.list():
        whose = known.setdefault((one.by, one.key.container_id), [])
        whose.append((one.key.claim, one.key.network, one.key.ifname))
    return [
        replace(one, delegated=tuple(more for name in one.types for more in known.get((name, one.where[1]), ())))
        for one in verdicts
    ]


def _with_addresses(one: Cached, state: State, why: str, addresses: Mapping[Address, str]) -> Verdict:
    """Let nothing be left over that some namespace still uses, or of which that cannot be said."""
    if state == "left over":
        holder = next((addresses[address] for address in one.addresses if address in addresses), None)
        if holder is not None:
            state, why = "held", f"{why}, but {holder} has its address"
        elif not one.addresses:
            state, why = "unknown", f"{why}, but it has no address by which its use could be seen"
    return Verdict(one.where, state, why, one)


def _namespace(path: str, written: float) -> tuple[State, str]:
    """Say whether a namespace that was at a path at some time is gone."""
    if not path:
        return "unknown", "libcni's cache does not name its network namespace"
    try:
        Netns.open(path).close()
    except InvalidNetns:
        pass
    else:
        return "held", f"network namespace {path} exists"
    if written < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
        return "left over", f"network namespace {path} is of an earlier boot"
    folder = Path(path).parent
    if not folder.is_dir():
        return "unknown", f"the folder of its network namespace {path} does not exist here"
    if not _sees_node() and not _shows_namespaces(folder.resolve()):
        return "unknown", f"network namespace {path} is not seen, but no other one of {folder} either"
    return "left over", f"network namespace {path} is gone"


def _shows_namespaces(folder: Path) -> bool:
    return any(one.fs_type == "nsfs" and Path(one.target).parent == folder for one in mounts())


def _sees_node() -> bool:
    """Whether this process sees those of the whole node: else the folder may be another than the runtime's."""
    return Path("/proc/self/ns/pid").stat().st_ino == _PROC_PID_INIT_INO


def _cut_off(one: Begun, known: Collection[Where]) -> Verdict:
    """Judge an ADD that has begun; `orphans` ends those whose namespace the kernel has destroyed."""
    where = (one.key.network, one.key.container_id, one.key.ifname)
    age = time.time() - one.time
    if age < SETTLED:
        return Verdict(where, "held", f"its ADD began {age:.0f} s ago", one)
    if where in known:
        return Verdict(where, "held", "its ADD was cut off, but libcni's cache knows it", one)
    if not known:
        return Verdict(where, "unknown", "its ADD was cut off, and libcni's cache is empty", one)
    return Verdict(where, "left over", "its ADD was cut off, and libcni's cache does not know it", one)
