"""The process of one FUSE program.

Owns: the mount with its connection, the start of the program with it, its end, and who still carries its mark.
Refuses: to decide when (`volume` does), and to wait for anything without a limit.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import NotReady, PluginError, ProgramCgroups, TryAgain, mount, mounted_at, unmount
from nodeplug_volumes.fuse import launch, layers
from nodeplug_volumes.fuse.config import Program
from nodeplug_volumes.fuse.room import Record, Room, start_time
from nodeplug_volumes.responding import Look, Silent, Usage, abort, within

MARK: Final = "NODEPLUG_FUSE_VOLUME"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLL: Final = 0.05
_END: Final = 20.0
"""Seconds for a program to write back what it holds, after its filesystem was unmounted."""
_KILL: Final = 5.0
_WORDS: Final = 1.0
"""Seconds for a program whose filesystem has failed to say why and end."""


@dataclass(frozen=True, slots=True)
class Server:
    """The program of one volume.

    Attributes:
        room: the volume's.
        name: of the program.
        cgroups: of the programs of this plugin; named by the volume's key.
    """

    room: Room
    name: str
    cgroups: ProgramCgroups = field(default_factory=ProgramCgroups)

    @property
    def source(self) -> str:
        """What mountinfo says is mounted; no other volume has it."""
        return f"{self.name}:{self.room.key}"

    def start(self, record: Record, program: Program, command: Sequence[str], environment: Mapping[str, str]) -> Usage:
        """Mount the filesystem at its staging path and start its program; write both down.

        Args:
            record: of the volume; gets device and process.
            program: what the administrator allows.
            command: filled in.
            environment: filled in, with secrets.

        Returns:
            What the filesystem says of itself.

        Raises:
            PluginError: it did not start; nothing is mounted, and no process is left.
        """
        try:
            self._mount(record, program, command, environment)
            return self._wait_until_it_answers(record, program.start_timeout)
        except BaseException:
            self.end(record, at_once=True)
            raise

    def _mount(self, record: Record, program: Program, command: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            connection = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NotReady(f"cannot open /dev/fuse: {error.strerror}; load the driver (modprobe fuse)") from error
        try:
            options = (f"fd={connection}", "rootmode=40000", f"user_id={record.user}", f"group_id={record.group}")
            mount(self.source, record.staging, f"fuse.{self.name}", options=(*program.mount_options, *options))
            found = mounted_at(record.staging)
            record.device = found.device if found is not None else ""
            record.former = [device for device in record.former if device != record.device]
            layers.make_private(record.staging)
            record.pid, record.started = 0, ""
            self.room.write(record)
            record.pid = self._spawn(connection, record, program, command, environment)
            record.started = start_time(record.pid)
            self.room.write(record)
        except OSError as error:
            raise PluginError(f"program {self.name!r} cannot be started: {error.strerror}") from error
        finally:
            os.close(connection)  # the program has it now: when that ends, so does the filesystem

    def _spawn(
        self,
        connection: int,
        record: Record,
        program: Program,
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> int:
        """Start the program in a session of its own: it outlives this process."""
        private = self.room.private
        entrances = self.cgroups.make(self.room.key, memory=program.memory, tasks=program.tasks)
        settings = {
            "command": list(command),
            "user": record.user,
            "group": record.group,
            "private": os.path.realpath(private),
            "hidden": os.path.realpath(Path(record.staging).parent),
            "limits": {"RLIMIT_CORE": 0, **self._own_limits(program)},
            "cgroups": [str(one) for one in entrances],
        }
        own = {"PATH": f"{launch.TMP}/programs:{_PATH}", "LC_ALL": "C.UTF-8", "HOME": f"{launch.TMP}/home"}
        own |= environment
        own |= {launch.VARIABLE: str(launch.CONNECTION), MARK: str(self.room.root)}
        output = str(private / "output")
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_APPEND, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, connection, launch.CONNECTION),
        ]
        program_of = [sys.executable, "-IS", launch.__file__, json.dumps(settings)]
        return os.posix_spawn(program_of[0], program_of, own, file_actions=actions, setsid=True)

    def _own_limits(self, program: Program) -> dict[str, int]:
        """Return the limits that no cgroup keeps (setrlimit(2))."""
        lacking = self.cgroups.lacking()
        limits = {"memory": ("RLIMIT_DATA", program.memory), "tasks": ("RLIMIT_NPROC", program.tasks)}
        return {name: most for one, (name, most) in limits.items() if most is not None and one in lacking}

    def _wait_until_it_answers(self, record: Record, seconds: float) -> Usage:
        look, until = Look(record.staging), time.monotonic() + seconds
        try:
            while True:
                with suppress(Silent):
                    return look.wait(_POLL)
                if not record.runs:
                    raise PluginError(f"program {self.name!r} ended{self.last_words(record)}")
                if time.monotonic() > until:
                    raise NotReady(
                        f"program {self.name!r} has not answered {seconds:g} s after its start{self._output()}; see "
                        "its server, and start_timeout"
                    )
        except OSError as error:
            if self._ends_within(record, _WORDS):
                raise PluginError(f"program {self.name!r} ended{self.last_words(record)}") from error
            raise PluginError(
                f"the filesystem of program {self.name!r} does not work: {error.strerror}{self._output()}"
            ) from error
        finally:
            look.give_up()

    def _ends_within(self, record: Record, seconds: float) -> bool:
        if not record.runs:
            return True
        try:
            process = os.pidfd_open(record.pid)
        except OSError:
            return True
        try:
            return bool(readable(seconds, process))
        finally:
            os.close(process)

    def last_words(self, record: Record) -> str:
        """Return how the program ended, and why or what it printed last."""
        how = ""
        with suppress(ChildProcessError):
            # 0 would be any child of the daemon.
            pid, status = os.waitpid(record.pid, os.WNOHANG) if record.pid else (0, 0)
            if pid and os.WIFSIGNALED(status):
                how = f" by {signal.Signals(os.WTERMSIG(status)).name}"
            elif pid:
                how = f" with status {os.waitstatus_to_exitcode(status)}"
        return f": {excess}" if (excess := self.excess()) else how + self._output()

    def excess(self, *, own: bool = False) -> str:
        """Say what the program, or a child of it, had too much of; nothing if the kernel has ended none for that.

        Args:
            own: only if it has exceeded its own limit.
        """
        return self.cgroups.excess(self.room.key, own=own)

    def _output(self) -> str:
        said = self.room.last_output()
        return f": {said}" if said else ""

    def end(self, record: Record, *, at_once: bool) -> None:
        """Unmount the filesystem and end the program with all that it has started.

        Args:
            record: of the volume.
            at_once: the server is dead or hangs: what it has not written is lost.

        Raises:
            TryAgain: it is in use; only if the server works.
        """
        staging = record.staging
        if not at_once and not within(_END, lambda: unmount(staging)):
            at_once = True
        if at_once:
            self._cut(record)
            within(_KILL, lambda: unmount(staging, lazy=True))
        self._await_end(record, 0.0 if at_once else _END)
        for pid in strays(self.room, record.user):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        record.pid, record.started = 0, ""
        with suppress(TryAgain):  # it is removed before the next start, which says so if it cannot be
            self.cgroups.remove(self.room.key)

    def _cut(self, record: Record) -> None:
        """End the connection, so that nobody waits for the server any more."""
        found = mounted_at(record.staging)
        if record.device and found is not None and found.device == record.device:
            with suppress(PluginError, OSError):
                abort(record.device, self.room.connections)

    def _await_end(self, record: Record, seconds: float) -> None:
        """Wait for the end of the program, then ask for it, then force it."""
        if not record.runs:
            self._reap(record)
            return
        try:
            process = os.pidfd_open(record.pid)
        except OSError:
            return
        try:
            ended = readable(seconds, process)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if ended:
                    break
                signal.pidfd_send_signal(process, number)
                # A stopped process takes no other signal than these.
                with suppress(OSError):
                    signal.pidfd_send_signal(process, signal.SIGCONT)
                ended = readable(_KILL, process)
        finally:
            os.close(process)
        self._reap(record)

    def _reap(self, record: Record) -> None:
        with suppress(ChildProcessError):
            if record.pid:
                os.waitpid(record.pid, os.WNOHANG)


def readable(seconds: float, *descriptors: int) -> set[int]:
    """Wait until one of some descriptors can be read; return which. They may have any number, unlike for select(2)."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(seconds * 1000)}


def strays(room: Room, user: int) -> list[int]:
    """Return every process that a volume's program has started, itself included: they inherit its mark.

    Args:
        room: of the volume.
        user: whom its program runs as, and so its children. The environment of others is not read: that waits for the
            lock of their memory, which a process may hold that hangs in the kernel.
    """
    mark, found = os.fsencode(f"{MARK}={room.root}"), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if _user_of(folder) == user and mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def _user_of(process: Path) -> int:
    """Return the real user of a process. The owner of its folder is root if it may not be dumped (proc(5), status)."""
    return int((process / "status").read_text(errors="replace").partition("\nUid:")[2].split(maxsplit=1)[0])
