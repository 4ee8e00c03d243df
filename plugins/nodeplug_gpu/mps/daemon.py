"""The MPS control daemon of one card (`nvidia-cuda-mps-control -f`).

Owns: its start, supervision, restarts and stop, and the card's compute mode meanwhile.
Refuses: to stop a daemon when nodeplug stops: running containers are its clients. The next start adopts it.
"""

import errno
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from nodeplug import Host, PluginError
from nodeplug.fields import show_quantity
from nodeplug_gpu.cards import Card
from nodeplug_gpu.cdi.driver_files import libraries
from nodeplug_gpu.config import Mps
from nodeplug_gpu.limits import NO_CAPS, Caps
from nodeplug_gpu.mps import launch, program, tmpfs
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record, start_time

STARTING: Final = "its MPS control daemon is starting"
MIN_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 60.0
START_TIMEOUT: Final = 30.0
"""Seconds after which a daemon that has not answered yet is reported as not answering, instead of starting."""
PING_INTERVAL: Final = 10.0
PING_TIMEOUT: Final = 5.0
_PING: Final = b"get_default_active_thread_percentage\n"
"""A command that every control daemon answers with a number, and that changes nothing."""
_MAX_MISSED_PINGS: Final = 2
_POLL_INTERVAL: Final = 0.5
_SMI_TIMEOUT: Final = 30.0
_MAX_SOCKET_PATH: Final = 107
"""Bytes of a socket's path (unix(7))."""
_MAX_OUTPUT: Final = 200


@dataclass(slots=True)
class ControlDaemon:
    """Keeps the daemon of one card running, in a thread of its own.

    Attributes:
        caps: what no client may exceed.
        reason: why clients cannot connect; empty when they can.
    """

    card: Card
    config: Mps
    driver_root: Path
    folders: Folders
    host: Host
    changed: Callable[[], None]
    reason: str = STARTING
    caps: Caps = NO_CAPS
    _ending: threading.Event = field(default_factory=threading.Event)
    _quit: bool = False
    _thread: threading.Thread | None = None

    @property
    def runs(self) -> bool:
        """Whether it is supervised; after `end`, whether the stop is still under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def outdated(self) -> str:
        """Why the daemon differs from one that would be started now; empty when it does not."""
        record = Record.read(self.folders.record)
        if record is None:
            return ""
        if record.shm is None:
            return "it shares the node's /dev/shm with its clients, as earlier versions do"
        if record.shm != self.config.shm_size:
            was, now = show_quantity(record.shm), show_quantity(self.config.shm_size)
            return f"it shares {was} of memory with its clients, where shm_size is {now}"
        if (record.caps or NO_CAPS) != self.caps:
            return "its clients have other limits than are configured"
        if record.multiuser != self._is_for_all_users():
            return f"it serves clients of {'all users' if record.multiuser else 'one user'} at a time"
        return self._unusable(record)

    @property
    def former_caps(self) -> bool:
        """Whether it caps its clients otherwise than they are to be limited now."""
        record = Record.read(self.folders.record)
        return record is not None and record.caps not in {None, NO_CAPS, self.caps}

    def start(self) -> None:
        """Start to supervise it; returns at once."""
        self._thread = threading.Thread(target=self._run, name=f"gpu:mps:{self.card.index}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Ask the thread to end; the daemon goes on for its clients."""
        self._ending.set()

    def join(self) -> None:
        """Wait for the end of the thread, for a moment."""
        if self._thread is not None:
            self._thread.join(2 * _POLL_INTERVAL)

    def end(self) -> None:
        """Stop the daemon, then the thread; returns at once."""
        self._quit = True
        self._ending.set()
        if self._thread is None:
            self.start()

    def _run(self) -> None:
        retry = MIN_BACKOFF
        while not self._ending.is_set():
            try:
                if self._watch(self._adopted() or self._launched()):
                    retry = MIN_BACKOFF
            except (OSError, subprocess.SubprocessError, PluginError) as error:
                self._set_reason(f"its MPS control daemon does not start: {_text(error)}")
            if not self._ending.wait(retry):
                retry = min(retry * 2, MAX_BACKOFF)
        if self._quit:
            self._end_daemon()
            self.changed()

    def _watch(self, record: Record) -> bool:
        """Wait until the daemon or this thread ends; return whether clients could ever connect."""
        descriptor = os.pidfd_open(record.pid)
        served, missed, begun, ping_at = False, 0, time.monotonic(), 0.0
        try:
            while not self._ending.is_set():
                now = time.monotonic()
                if self.folders.ready and now >= ping_at:
                    why = self._ping(record)
                    served, missed = served or not why, missed + 1 if why else 0
                    ping_at = time.monotonic() + (_POLL_INTERVAL if why else PING_INTERVAL)
                    if not why:
                        self._set_reason(self._unusable(record))
                    elif served and missed >= _MAX_MISSED_PINGS:
                        self._set_reason(f"its MPS control daemon does not answer: {why}")
                    with suppress(OSError):
                        tmpfs.trim_logs(self.folders)
                if not served and now - begun >= START_TIMEOUT:
                    self._set_reason(
                        f"its MPS control daemon has not answered since it was started; see {self.folders.logs}"
                    )
                ended, _, _ = select.select([descriptor], [], [], _POLL_INTERVAL if served else _POLL_INTERVAL / 10)
                if ended:
                    self._set_reason(
                        f"its MPS control daemon ended{self._last_output(record.pid)}; see {self.folders.logs}"
                    )
                    return served
        finally:
            os.close(descriptor)
        return served

    def _last_output(self, pid: int) -> str:
        """Return the last line that a failed child printed."""
        with suppress(OSError):
            if os.waitpid(pid, os.WNOHANG)[1]:
                lines = self.folders.output.read_bytes()[-_MAX_OUTPUT:].decode(errors="replace").split("\n")
                return f": {lines[-2]}" if len(lines) > 1 and lines[-2] else ""
        return ""

    def _unusable(self, record: Record) -> str:
        """Return why a running daemon cannot have new clients; empty when it can."""
        if record.shm is None or tmpfs.is_shared(self.folders):
            return ""
        return f"{self.folders.shm}, which it shares with its clients, is no longer mounted"

    def _ping(self, record: Record) -> str:
        """Send the daemon a command; return why there is no answer. A socket alone may be stale or foreign."""
        try:
            done = subprocess.run(
                self._control(record.shm),
                input=_PING,
                env=self._environment(),
                timeout=PING_TIMEOUT,
                check=False,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            return f"no answer to a command in {PING_TIMEOUT:g} s"
        except OSError as error:
            return _text(error)
        said = (done.stdout + done.stderr).decode(errors="replace").strip()[-200:]
        return "" if not done.returncode and done.stdout.strip() else f"a command ended with {done.returncode}: {said}"

    def _set_reason(self, reason: str) -> None:
        if reason != self.reason:
            if reason and self.reason == "":
                self.host.log.warning("%s: %s", self.card.uuid, reason)
            self.reason = reason
            self.changed()

    def _adopted(self) -> Record | None:
        """Return the daemon of an earlier nodeplug, with the card in the compute mode that is configured now."""
        record = Record.read(self.folders.record)
        if record is None or not record.runs:
            return None
        if record.exclusive != self.config.exclusive_process:
            self._compute_mode("EXCLUSIVE_PROCESS" if self.config.exclusive_process else "DEFAULT")
            record = replace(record, exclusive=self.config.exclusive_process)
            record.write(self.folders.record)
        return record

    def _launched(self) -> Record:
        """Start a daemon, with the shared memory of one that has ended: containers may still have that mounted."""
        self._check_socket()
        before = Record.read(self.folders.record)
        shm = before.shm if before is not None else self.config.shm_size
        caps = before.caps if before is not None else self.caps
        multiuser = self._serves_all_users()
        self._make_folders(shm, fresh=before is None)
        self._link_libraries()
        (self.folders.pipes / "control").unlink(missing_ok=True)
        # Not by the name of the card: servers of a daemon that has ended may still have clients.
        cgroups = self.host.cgroups.make(f"mps{secrets.token_hex(8)}")
        command = self._control(shm, "-f", *([f"-{program.MULTIUSER}"] if multiuser else []), cgroups=cgroups)
        if self.config.exclusive_process:
            self._compute_mode("EXCLUSIVE_PROCESS")
        elif before is not None and before.exclusive:
            self._compute_mode("DEFAULT")
        pid = _spawn(command, self._environment() | _capping(caps or NO_CAPS), self.folders.output)
        record = Record(pid, start_time(pid), self.config.exclusive_process, shm, multiuser, caps)
        record.write(self.folders.record)
        return record

    def _check_socket(self) -> None:
        if len(os.fsencode(self.folders.pipes / "control")) > _MAX_SOCKET_PATH:
            why = f"the path of its socket is longer than {_MAX_SOCKET_PATH} bytes; choose a shorter run folder"
            raise OSError(errno.ENAMETOOLONG, why, str(self.folders.pipes))

    def _make_folders(self, shm: int | None, *, fresh: bool) -> None:
        """Make the folders. Clients are of any user and only read the pipes: a writer could replace the socket."""
        self.folders.pipes.mkdir(parents=True, exist_ok=True)
        self.folders.pipes.chmod(0o755)
        tmpfs.mount_logs(self.folders)
        if shm is None:
            return
        tmpfs.mount_memory(self.folders, shm, fresh=fresh)
        if tmpfs.is_hidden(self.folders):
            self.host.log.warning(
                "the node does not see what is mounted on %s, so containers would get an empty folder; in a pod, "
                "nodeplug needs its run folder with mountPropagation: Bidirectional",
                self.folders.shm,
            )

    def _control(self, shm: int | None, *arguments: str, cgroups: Iterable[Path] = ()) -> list[str]:
        """Return the command line of a control program that has the daemon's /dev/shm."""
        found = self._control_program()
        place, folder = ":".join(map(str, cgroups)), "" if shm is None else str(self.folders.shm)
        own = [sys.executable, "-IS", launch.__file__, folder, place] if folder or place else []
        return [*own, found, *arguments]

    def _control_program(self) -> str:
        return program.found(self.config.command, self.driver_root, self._environment()["PATH"])

    def _serves_all_users(self) -> bool:
        wanted = self.config.multiuser_server
        return wanted is not False and program.serves_all_users(wanted, self.card, self._control_program())

    def _is_for_all_users(self) -> bool:
        """Whether a daemon that were started now would serve all users; as long as it cannot be started, as wanted."""
        try:
            return self._serves_all_users()
        except OSError:
            return self.config.multiuser_server is True

    def _end_daemon(self) -> None:
        record = Record.read(self.folders.record)
        if record is not None and record.runs:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    self._control(record.shm),
                    input=b"quit\n",
                    env=self._environment(),
                    timeout=self.config.stop_after,
                    check=False,
                    capture_output=True,
                )
            end_process(record.pid, self.config.stop_after, asked=self.config.stop_after)
        if record is not None and record.exclusive:
            try:
                self._compute_mode("DEFAULT")
            except (OSError, subprocess.SubprocessError) as error:
                self.host.log.warning("%s stays in compute mode EXCLUSIVE_PROCESS: %s", self.card.uuid, _text(error))
        clean_up(self.folders, self.host)

    def _link_libraries(self) -> None:
        """Link to the driver's libraries, which the server loads; not to their folder, which may hold another libc."""
        self.folders.libraries.mkdir(parents=True, exist_ok=True)
        for name, path in libraries(self.driver_root).items():
            link = self.folders.libraries / name
            link.unlink(missing_ok=True)
            link.symlink_to(path)

    def _compute_mode(self, mode: str) -> None:
        command = [program.path_of("nvidia-smi", self.driver_root), "-i", self.card.uuid, "-c", mode]
        done = subprocess.run(
            command, capture_output=True, timeout=_SMI_TIMEOUT, check=False, text=True, env=self._environment()
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-300:]
            raise OSError(0, f"`{' '.join(command)}` failed with {done.returncode}: {said}")

    def _environment(self) -> dict[str, str]:
        path, own = os.environ.get("PATH", os.defpath), {}
        if self.driver_root != Path("/"):
            path = ":".join([*(str(self.driver_root / folder) for folder in program.FOLDERS), path])
            own = {"LD_LIBRARY_PATH": str(self.folders.libraries)}
        return own | {
            "PATH": path,
            "CUDA_VISIBLE_DEVICES": self.card.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folders.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folders.logs),
        }


def _capping(caps: Caps) -> dict[str, str]:
    """Return the environment by which a daemon caps all its clients; device 0 is its only one."""
    memory = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={caps.memory}M"} if caps.memory else {}
    return memory | ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(caps.threads)} if caps.threads else {})


def _spawn(command: list[str], environment: Mapping[str, str], output: Path) -> int:
    """Start a program that outlives this process, in a session of its own.

    Not by subprocess: a Popen object expects to wait for its child, and warns when it is collected before.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True)


def clean_up(folders: Folders, host: Host) -> None:
    """Remove what a stopped daemon leaves: its mounts, then its record."""
    try:
        tmpfs.unmount_all(folders)
    except PluginError as error:
        host.log.warning("%s", error)
    folders.record.unlink(missing_ok=True)


def _text(error: OSError | subprocess.SubprocessError | PluginError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def end_process(pid: int, timeout: float, asked: float = 0.0) -> None:
    """Terminate a process with signals, some seconds after it was asked to end."""
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            ended = select.select([descriptor], [], [], asked)[0]
            for number in (signal.SIGTERM, signal.SIGKILL):
                if ended:
                    break
                signal.pidfd_send_signal(descriptor, number)
                ended = select.select([descriptor], [], [], timeout)[0]
        finally:
            os.close(descriptor)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
