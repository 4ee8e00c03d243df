"""CUDA MPS: several containers on one card at once, each within its limits.

Owns: one control daemon per card (NVIDIA, "Multi-Process Service", `nvidia-cuda-mps-control -f`), from its start over
its restarts to its end, and what a container needs to be its client.
Refuses: to end a daemon when nodeplug ends: running containers are its clients. The next start finds it again.

MPS limits are per process, not per container: two processes of one container get twice the memory.
"""

import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import DeviceMount, Grant, Host
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.ids import card_key

PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks by default, inside the container
LOGS: Final = "/var/log/nvidia-mps"
FIRST_VOLTA: Final = (7, 0)
"""Compute capability from which MPS has limits of memory and isolated address spaces."""
FIRST_RETRY: Final = 1.0
LAST_RETRY: Final = 60.0
_TURN: Final = 0.5
_SMI_PATIENCE: Final = 30.0
_STRAY_PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one card's daemon; clients reach it through `pipes`."""

    root: Path

    @property
    def pipes(self) -> Path:
        """Its socket and pipes (CUDA_MPS_PIPE_DIRECTORY)."""
        return self.root / "pipe"

    @property
    def logs(self) -> Path:
        """Its logs (CUDA_MPS_LOG_DIRECTORY)."""
        return self.root / "log"

    @property
    def record(self) -> Path:
        """Who it is, for the next start of nodeplug."""
        return self.root / "daemon.json"

    @property
    def ready(self) -> bool:
        """Whether clients can connect."""
        return (self.pipes / "control").exists()

    @staticmethod
    def of(run_dir: Path, uuid: Uuid) -> "Folders":
        """Return the folders of a card. A socket's path has at most 107 bytes, hence the key and not the UUID."""
        return Folders(run_dir / "mps" / card_key(uuid))


def client(folders: Folders, card: Card, memory: int, share: float, *, threads: bool) -> Grant:
    """Return what makes a container a client with limits.

    Args:
        folders: of the card's daemon.
        card: the only one that the container sees, hence device 0 there.
        memory: bytes that each process may allocate.
        share: of the card, above 0 and up to 1.
        threads: limit multiprocessors by the same share.
    """
    env = {"CUDA_MPS_PIPE_DIRECTORY": PIPES, "CUDA_MPS_LOG_DIRECTORY": LOGS}
    if card.compute_capability >= FIRST_VOLTA:
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory >> 20}M"
        if threads:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * share)))
    mounts = (
        DeviceMount(str(folders.pipes), PIPES, read_only=False),
        DeviceMount(str(folders.logs), LOGS, read_only=False),
        DeviceMount("/dev/shm", "/dev/shm", read_only=False),  # noqa: S108 - client and daemon share memory there
    )
    return Grant(env=env, mounts=mounts)


@dataclass(slots=True)
class ControlDaemon:
    """Keeps the daemon of one card running, in a thread of its own.

    Attributes:
        reason: why clients cannot connect; empty when they can.
    """

    card: Card
    config: Mps
    driver_root: Path
    folders: Folders
    host: Host
    changed: Callable[[], None]
    reason: str = "its MPS control daemon is starting"
    _ending: threading.Event = field(default_factory=threading.Event)
    _quit: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread = threading.Thread(target=self._keep, name=f"gpu:mps:{self.card.index}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the thread; the daemon goes on for its clients."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(2 * _TURN)

    def end(self) -> None:
        """End the daemon, and the thread after it; returns at once."""
        self._quit = True
        self._ending.set()

    def _keep(self) -> None:
        retry = FIRST_RETRY
        while not self._ending.is_set():
            try:
                pid = recorded(self.folders.record) or self._started()
                if self._watch(pid):
                    retry = FIRST_RETRY
            except (OSError, subprocess.SubprocessError) as error:
                self._say(f"its MPS control daemon does not start: {_text(error)}")
            if not self._ending.wait(retry):
                retry = min(retry * 2, LAST_RETRY)
        if self._quit:
            self._end_daemon()

    def _watch(self, pid: int) -> bool:
        """Wait for the daemon's end or ours; tell whether clients could ever connect."""
        descriptor = os.pidfd_open(pid)
        served = False
        try:
            while not self._ending.is_set():
                if self.folders.ready:
                    served = True
                    self._say("")
                ended, _, _ = select.select([descriptor], [], [], _TURN if served else _TURN / 10)
                if ended:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                    self._say(f"its MPS control daemon ended; see {self.folders.logs}")
                    return served
        finally:
            os.close(descriptor)
        return served

    def _say(self, reason: str) -> None:
        if reason != self.reason:
            if reason and self.reason == "":
                self.host.log.warning("%s: %s", self.card.uuid, reason)
            self.reason = reason
            self.changed()

    def _started(self) -> int:
        for folder in (self.folders.pipes, self.folders.logs):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777)  # clients are of any user; the folder above lets only the grant's mount in
        (self.folders.pipes / "control").unlink(missing_ok=True)
        if self.config.exclusive_process:
            self._compute_mode("EXCLUSIVE_PROCESS")
        command = [self._program(self.config.command), "-f"]
        pid = _spawn(command, self._environment(), self.folders.root / "control.log")
        record = {"pid": pid, "started": _start_time(pid)}
        self.folders.record.write_text(json.dumps(record), encoding="ascii")
        return pid

    def _end_daemon(self) -> None:
        pid = recorded(self.folders.record)
        if pid is not None:
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [self._program(self.config.command)],
                    input=b"quit\n",
                    env=self._environment(),
                    timeout=self.config.stop_after,
                    check=False,
                    capture_output=True,
                )
            _end_process(pid, self.config.stop_after)
        self.folders.record.unlink(missing_ok=True)
        if self.config.exclusive_process:
            with suppress(OSError, subprocess.SubprocessError):
                self._compute_mode("DEFAULT")

    def _compute_mode(self, mode: str) -> None:
        command = [self._program("nvidia-smi"), "-i", self.card.uuid, "-c", mode]
        done = subprocess.run(command, capture_output=True, timeout=_SMI_PATIENCE, check=False, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-300:]
            raise OSError(0, f"`{' '.join(command)}` failed with {done.returncode}: {said}")

    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "CUDA_VISIBLE_DEVICES": self.card.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.folders.pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(self.folders.logs),
        }

    def _program(self, name: str) -> str:
        """Prefer the program that belongs to the driver."""
        if "/" in name:
            return name
        places = [self.driver_root / folder / name for folder in ("usr/bin", "bin", "usr/local/nvidia/bin")]
        return next((str(place) for place in places if place.exists()), name)


def _first_reason(folders: Folders) -> str:
    """Return why clients cannot connect before anybody watches: a predecessor's daemon may serve them all the while."""
    return "" if folders.ready and recorded(folders.record) is not None else "its MPS control daemon is starting"


def recorded(record: Path) -> int | None:
    """Return the pid of a daemon that an earlier nodeplug started and that still runs."""
    try:
        found = json.loads(record.read_text(encoding="ascii"))
        pid, started = int(found["pid"]), str(found["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if started and _start_time(pid) == started else None


def _spawn(command: list[str], environment: Mapping[str, str], output: Path) -> int:
    """Start a program that outlives this process, in a session of its own.

    Not by subprocess: its object wants to wait for the child, and warns when it cannot.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True)


def _text(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot (proc(5), field 22): with the pid, nobody else's."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]


def _end_process(pid: int, patience: float) -> None:
    with suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if select.select([descriptor], [], [], 0)[0]:
                    break
                signal.pidfd_send_signal(descriptor, number)
                select.select([descriptor], [], [], patience)
        finally:
            os.close(descriptor)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


@dataclass(slots=True)
class MpsDaemons:
    """The daemons of all cards that are sold with MPS. Called in one thread; `reason` may be read by any."""

    host: Host
    driver_root: Path
    changed: Callable[[], None]
    _daemons: dict[Uuid, ControlDaemon] = field(default_factory=dict)
    _swept: bool = False

    def keep(self, wanted: Mapping[Uuid, tuple[Card, Mps]]) -> None:
        """Run a daemon for each of these cards, and no other."""
        for uuid in self._daemons.keys() - wanted.keys():
            self.host.log.info("%s is no longer shared by MPS: its control daemon ends", uuid)
            self._daemons.pop(uuid).end()
        if not self._swept:
            self._swept = True
            self._end_strays(wanted)
        for uuid in wanted.keys() - self._daemons.keys():
            card, config = wanted[uuid]
            folders = Folders.of(self.host.run_dir, uuid)
            daemon = ControlDaemon(card, config, self.driver_root, folders, self.host, self.changed)
            daemon.reason = _first_reason(folders)
            daemon.start()
            self._daemons[uuid] = daemon

    def reason(self, uuid: Uuid) -> str:
        """Return why no client can connect to a card's daemon; empty when it can."""
        daemon = self._daemons.get(uuid)
        return daemon.reason if daemon is not None else _first_reason(Folders.of(self.host.run_dir, uuid))

    def stop(self) -> None:
        """End the threads; the daemons go on for their clients."""
        for daemon in self._daemons.values():
            daemon.leave()

    def _end_strays(self, wanted: Iterable[Uuid]) -> None:
        """End the daemons of an earlier configuration."""
        known = {card_key(uuid) for uuid in wanted}
        for record in (self.host.run_dir / "mps").glob("*/daemon.json"):
            if record.parent.name not in known:
                pid = recorded(record)
                if pid is not None:
                    self.host.log.info("the MPS control daemon %d of an earlier configuration ends", pid)
                    _end_process(pid, _STRAY_PATIENCE)
                record.unlink(missing_ok=True)
