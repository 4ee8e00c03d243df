"""The life of one volume: its program is started, watched, adopted by the next daemon, and started anew if it ends.

Owns: the order of these steps, under the volume's lock, and what is wrong with the volume, in words.
Refuses: to end a program because nodeplug ends: pods use it, and the next start adopts it.

A pod sees the filesystem of a program that has ended as a mount on which every access fails. The new one is mounted on
top of that at each pod's target, never in its place: mount propagation carries it into those containers that asked for
it (`mountPropagation: HostToContainer`), and nobody ever sees the bare directory and writes to the node's disk. So that
it reaches no other pod's target, which may be read-only, the mount that all of them are copies of is private.
"""

import errno
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import Host, NotFound, PluginError, TryAgain, bind, mounted_at, unmount
from nodeplug_volumes.fuse import config as cfg
from nodeplug_volumes.fuse import layers
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.server import Server, readable
from nodeplug_volumes.responding import Silent, Usage, look

MIN_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 60.0
PATIENCE: Final = 60.0
"""Seconds that a call waits for the volume: longer than a start of its program takes, as a rule."""
LOOK_TIMEOUT: Final = 5.0
_SECOND_LOOK: Final = 1.0
"""Seconds for a program that is known not to answer to do so after all."""
_DEAD: Final = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
"""What the kernel answers in place of a program that has ended; every other error is the program's own answer."""
_STALE: Final = "the program was started anew, and {} still see the former one: start these containers again"


@dataclass(slots=True)
class Volume:
    """One volume of this node.

    Attributes:
        room: its folder.
        host: for the log.
        programs: of the configuration.
        interval: seconds between looks.
        condition: what is wrong, for people; empty if nothing is. Nothing is decided by it.
        fails: whether its program did not answer the last look, or with an error.
        usage: what the filesystem said last.
        last_end: how its program ended when it did, and why; empty if it has not.
    """

    room: Room
    host: Host
    programs: Mapping[str, cfg.Program]
    interval: float
    condition: str = ""
    fails: bool = False
    usage: Usage | None = None
    last_end: str = ""
    _leaving: threading.Event = field(default_factory=threading.Event)
    _wake: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
    _waking: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _silent_since: float | None = None
    _started: float = -MAX_BACKOFF

    # --- what calls do

    def stage(self, record: Record, files: Mapping[str, bytes], variables: Mapping[str, str]) -> None:
        """Start the program, and watch it.

        Pods that have the volume already, and lost it when its program ended, get it back; a failure takes nothing from
        them: the watch tries again, with these secrets.
        """
        with self.room.locked(PATIENCE):
            former = self.room.read()
            if former is not None and self._users(former):
                self._stage_again(former, record, files, variables)
            else:
                self._stage(former, record, files, variables)
        self.watch()

    def _stage(
        self, former: Record | None, record: Record, files: Mapping[str, bytes], variables: Mapping[str, str]
    ) -> None:
        self._take_down(former)
        self.room.write(record)
        try:
            self.room.furnish(record, self.programs[record.program].tmp, files, variables)
            self._start(record)
            self.condition = ""
        except BaseException:
            self.room.remove()
            raise

    def _stage_again(
        self, former: Record, record: Record, files: Mapping[str, bytes], variables: Mapping[str, str]
    ) -> None:
        known = replace(former, program=record.program, options=record.options, staging=record.staging)
        self._take_down(former)
        known.pid, known.started = 0, ""
        try:
            self.room.furnish(known, self.programs[known.program].tmp, files, variables)
            self._start_anew(known)
        finally:
            self.watch()

    def publish(self, target: str, *, read_only: bool) -> None:
        """Bind the filesystem for a pod.

        Raises:
            TryAgain: its program does not work now.
        """
        with self.room.locked(PATIENCE):
            record = self._known()
            if self.fails or not record.runs:
                raise TryAgain(self.condition or f"program {record.program!r} has ended and is started again")
            record.targets[target] = read_only
            self.room.write(record)
            bind(record.staging, target, read_only=read_only)

    def unpublish(self, target: str) -> None:
        """Unmount it for a pod, whatever its program does.

        Raises:
            TryAgain: the pod's mount is in use.
        """
        with self.room.locked(PATIENCE):
            record = self.room.read()
            try:
                unmount(target)
            except TryAgain:
                if record is not None and record.runs and self._answers(record):
                    raise
                unmount(target, lazy=True)
            if record is not None and record.targets.pop(target, None) is not None:
                self.room.write(record)

    def end(self) -> None:
        """Unmount it for the node, end its program, and forget it.

        Raises:
            TryAgain: it is in use.
        """
        self.leave()
        try:
            with self.room.locked(PATIENCE):
                record = self.room.read()
                if record is not None and (users := self._users(record)):
                    raise TryAgain(f"the volume is in use: {len(users)} pods still have it, such as {users[0]!r}")
                self._take_down(record)
                self.room.remove()
        except PluginError:
            self.watch()
            raise

    # --- the watch

    def watch(self) -> None:
        """Begin to watch the program, in a thread; one that has ended is started again."""
        self._leaving.clear()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"fuse:{self.room.key}", daemon=True)
            self._thread.start()

    def ask_to_leave(self) -> None:
        """Ask the watch to end; the program goes on. Returns at once."""
        self._leaving.set()
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def leave(self, patience: float = PATIENCE) -> None:
        """End the watch, and wait for that; a start of the program that is under way is waited for, too."""
        self.ask_to_leave()
        if self._thread is not None:
            self._thread.join(patience)
        with self._waking, suppress(BlockingIOError):
            if self._wake >= 0:
                os.eventfd_read(self._wake)

    def close(self) -> None:
        """Close what was open for the watch, which has ended; may be called again."""
        with self._waking:
            if self._wake >= 0 and (self._thread is None or not self._thread.is_alive()):
                os.close(self._wake)
                self._wake = -1

    def _run(self) -> None:
        retry = MIN_BACKOFF
        while not self._leaving.is_set():
            try:
                record = self._known()
                if not self._ended(record) and self._is_sound(record):
                    self._look(record)
                    if time.monotonic() - self._started >= MAX_BACKOFF:
                        retry = MIN_BACKOFF
                    continue
                self.last_end = f"program {record.program!r} ended{self._server(record).last_words(record)}"
                self._say(self.last_end)
                if time.monotonic() - self._started < MAX_BACKOFF and self._leaving.wait(retry):
                    return
                retry = min(retry * 2, MAX_BACKOFF)
                with self.room.locked(PATIENCE):
                    if self._leaving.is_set():
                        return
                    known = self._known()
                    if not self._is_sound(known):  # else a call has started it meanwhile
                        self._start_anew(known)
            except NotFound:  # another instance has ended it
                return
            except Exception as error:  # whatever it is, the next try may succeed, and nobody else would try
                self._say(f"it is not served: {error}")
                self._leaving.wait(retry)
                retry = min(retry * 2, MAX_BACKOFF)

    def _is_sound(self, record: Record) -> bool:
        """Whether the program runs, and nothing of it was ended for its own limit: a part of it may be missing then."""
        return record.runs and not self._server(record).excess(own=True)

    def _ended(self, record: Record) -> bool:
        """Wait until the program ends, or until it is time for a look; return which it was."""
        if not record.runs:
            return True
        process = os.pidfd_open(record.pid)
        try:
            return process in readable(self.interval if self.usage is not None else 0, process, self._wake)
        finally:
            os.close(process)

    def _look(self, record: Record) -> None:
        if self._leaving.is_set():
            return
        self.room.trim_output()
        try:
            self.usage = look(record.staging, LOOK_TIMEOUT)
        except (Silent, OSError) as error:
            self.fails = True
            self._hangs(record, f"program {record.program!r} does not answer{f': {error}' if str(error) else ''}")
            return
        self._silent_since, self.fails = None, False
        containers = layers.uncovered(record.former, self._server(record).source)
        self._say(_STALE.format(_count(containers)) if containers else "")
        if record.former and not containers:
            with self.room.locked(PATIENCE):
                known = self._known()
                known.former = []
                self.room.write(known)

    def _hangs(self, record: Record, why: str) -> None:
        self.usage = self.usage or Usage(0, 0, 0, 0, 0)
        now, program = time.monotonic(), self.programs.get(record.program)
        self._silent_since = self._silent_since or now
        self._say(why)
        limit = program.restart_after_hang if program is not None else None
        if limit is not None and now - self._silent_since >= limit:
            self.host.log.warning("volume %s: program %s is ended, since it hangs", record.volume_id, record.program)
            self._silent_since = None
            with self.room.locked(PATIENCE):
                if not self._leaving.is_set():
                    self._start_anew(self._known())

    def _say(self, condition: str) -> None:
        if condition and condition != self.condition:
            self.host.log.warning("volume %s: %s", self.room.key, condition)
        elif self.condition and not condition:
            self.host.log.info("volume %s: it works again", self.room.key)
        self.condition = condition

    # --- steps, under the lock

    def _server(self, record: Record) -> Server:
        return Server(self.room, record.program, self.host.cgroups)

    def _known(self) -> Record:
        record = self.room.read()
        if record is None:
            raise NotFound(f"the volume of {self.room.root} is not staged here")
        return record

    def _start(self, record: Record) -> None:
        program = self.programs.get(record.program)
        if program is None:
            raise PluginError(f"program {record.program!r} is not in the configuration any more")
        filled = cfg.values_of(record.program, program, record.options) | dict(cfg.BUILT_IN)
        command = [cfg.fill(word, filled) for word in program.command]
        environment = {name: cfg.fill(text, filled) for name, text in program.environment.items()}
        environment |= self.room.variables()
        self.usage = self._server(record).start(record, program, command, environment)
        self._silent_since, self._started, self.fails = None, time.monotonic(), False

    def _start_anew(self, record: Record) -> None:
        """Start the program again, and mount its filesystem over the dead one at every target."""
        self._server(record).end(record, at_once=True)
        if record.device and record.device not in record.former:
            record.former = [*record.former, record.device][-8:]
        self._start(record)
        self.host.log.warning("volume %s: program %s was started anew", record.volume_id, record.program)
        failed = []
        for target, read_only in record.targets.items():
            try:
                layers.mount_over(record.staging, target, read_only=read_only)
            except PluginError as error:
                failed.append(error.message)
        if failed:
            raise PluginError("; ".join(failed))
        self.condition = ""  # not before: every pod has the new one by now

    def _take_down(self, record: Record | None) -> None:
        if record is not None:
            healthy = record.runs and self._answers(record)
            self._server(record).end(record, at_once=not healthy)

    def _answers(self, record: Record) -> bool:
        """Look now: what the watch has seen last may be over, and a program that works still has to write."""
        try:
            look(record.staging, _SECOND_LOOK if self.fails else LOOK_TIMEOUT)
        except Silent:
            return False
        except OSError as error:
            return error.errno not in _DEAD
        return True

    def _users(self, record: Record) -> list[str]:
        """Return the targets at which pods have the volume, be it dead."""
        source = self._server(record).source
        found = ((target, mounted_at(target)) for target in record.targets)
        return [target for target, one in found if one is not None and one.source == source]


def _count(containers: int) -> str:
    return "one container" if containers == 1 else f"{containers} containers"
