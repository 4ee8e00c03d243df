"""The fuse driver: its hooks.

Owns: which volumes there are on the node, their users, and what a request means for one of them.
Refuses: how a program lives (`volume`), and to let kubelet look at a mount whose program may hang: usage and condition
come from `volume_stats`, which answers from the last look.

Options: `program` (a name in `[plugins.fuse.config.programs]`; optional if there is only one), and those of it.
"""

import pwd
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug import (
    Claim,
    Exhausted,
    Host,
    InvalidRequest,
    NotFound,
    NotReady,
    PluginError,
    VolumeClaim,
    VolumeId,
    VolumePublish,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
    VolumeUnpublish,
    VolumeUnstage,
    hookimpl,
    unmount,
)
from nodeplug_volumes.fuse import config as cfg
from nodeplug_volumes.fuse.config import FuseConfig, Program
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.volume import Volume
from nodeplug_volumes.responding import sweep

_USERS: Final = 1 << 16
_STOP: Final = 5.0
"""Seconds for all watches to end. One that starts a program just now keeps the lock of its volume, and no other."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Fuse:
    """The plugin."""

    Config = FuseConfig
    isolation = "thread"

    def __init__(self, config: FuseConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._volumes: dict[str, Volume] = {}
        self._lock = threading.Lock()

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver. Kubelet measures nothing itself: it would hang with a program that does."""
        config = self._config
        return [VolumeClaim(config.driver, fs_group="none", selinux_relabel=False, metrics=False, inline=config.inline)]

    @hookimpl
    def start(self) -> None:
        """Adopt the programs of the former daemon, and end what it left half started."""
        sweep(self._host.run_dir / "connections")
        for limit, why in self._host.cgroups.lacking().items():
            if limited := [name for name, one in self._config.programs.items() if getattr(one, limit) is not None]:
                self._host.log.warning(
                    "no cgroup limits the %s of %s: %s; see `cgroups` of [supervisor]", limit, ", ".join(limited), why
                )
        for folder in sorted((self._host.run_dir / "volumes").glob("*/")):
            room = Room(folder)
            if room.read() is None:
                with room.locked(1.0):
                    room.remove()
            else:
                self._volume(room).watch()

    @hookimpl
    def stop(self) -> None:
        """End the watches; the programs go on for their pods."""
        with self._lock:
            volumes = list(self._volumes.values())
        for volume in volumes:
            volume.ask_to_leave()
        until = time.monotonic() + _STOP
        for volume in volumes:
            volume.leave(max(0.0, until - time.monotonic()))

    @hookimpl
    def health(self) -> None:
        """Not ready without FUSE, or without one of the programs."""
        if not Path("/dev/fuse").exists():
            raise NotReady(
                "there is no /dev/fuse; load the driver (modprobe fuse), or provide that file in the container"
            )
        missing = [
            one.command[0] for one in self._config.programs.values() if not shutil.which(one.command[0], path=_PATH)
        ]
        if missing:
            raise NotReady(f"programs are missing on this node: {', '.join(missing)}; install their packages")

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        """Tell what serves each volume."""
        with self._lock:
            volumes = list(self._volumes.values())
        found = ((volume, volume.room.read()) for volume in volumes)
        return {
            "no_cgroup_limits": dict(self._host.cgroups.lacking()),
            "volumes": [
                {
                    "volume": record.volume_id,
                    "program": record.program,
                    "pid": record.pid,
                    "user": record.user,
                    "pods": len(record.targets),
                    "condition": volume.condition,
                    "last_end": volume.last_end,
                }
                for volume, record in found
                if record is not None
            ],
        }

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        """Start the program of the volume."""
        if request.mount_flags:
            raise InvalidRequest(
                "fuse has no mountOptions; they are the administrator's, in mount_options of the program"
            )
        name = cfg.choose(self._config.programs, request.options)
        program = self._config.programs[name]
        values = cfg.values_of(name, program, request.options)
        for word in program.command:
            cfg.fill(word, values | dict(cfg.BUILT_IN))
        files, variables = cfg.sort_secrets(name, program, request.secrets)
        room = Room.of(self._host.run_dir, request.volume_id)
        with self._lock:  # one at a time chooses a user
            user, group = self._user(program)
            record = Record(request.volume_id, name, dict(request.options), request.staging_path, user, group)
            if room.read() is None:
                room.write(record)
        self._volume(room).stage(record, files, variables)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Bind the filesystem for a pod."""
        self._staged(request.volume_id).publish(request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        """Unmount it for a pod."""
        room = Room.of(self._host.run_dir, request.volume_id)
        if room.read() is None:
            unmount(request.target_path, lazy=True)
        else:
            self._volume(room).unpublish(request.target_path)

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Unmount it, and end its program."""
        room = Room.of(self._host.run_dir, request.volume_id)
        if room.read() is not None:
            self._volume(room).end()
        with self._lock:
            volume = self._volumes.pop(room.key, None)
        if volume is not None:
            volume.close()
        unmount(request.staging_path, lazy=True)

    @hookimpl
    def volume_stats(self, request: VolumeStatsRequest) -> VolumeStats:
        """Answer from the last look at the filesystem: a program that hangs holds nobody who asks."""
        volume = self._staged(request.volume_id)
        usage = volume.usage
        if usage is None and not volume.condition:
            raise NotFound(f"nobody has looked at the volume at {request.mount_path!r} yet; ask again in a moment")
        if usage is None:
            return VolumeStats(total=0, used=0, available=0, condition=volume.condition)
        return VolumeStats(
            total=usage.total,
            used=usage.used,
            available=usage.available,
            inodes=usage.inodes,
            inodes_used=usage.inodes_used,
            condition=volume.condition,
        )

    def _staged(self, volume_id: VolumeId) -> Volume:
        room = Room.of(self._host.run_dir, volume_id)
        if room.read() is None:
            raise NotFound(f"volume {volume_id!r} is not staged on this node")
        return self._volume(room)

    def _volume(self, room: Room) -> Volume:
        with self._lock:
            known = self._volumes.get(room.key)
            if known is None:
                known = Volume(room, self._host, self._config.programs, self._config.check_interval)
                self._volumes[room.key] = known
            return known

    def _user(self, program: Program) -> tuple[int, int]:
        """Return the user and the group of a program: those of its configuration, or a number that no volume has."""
        if program.user:
            try:
                number = int(program.user) if program.user.isdecimal() else pwd.getpwnam(program.user).pw_uid
            except KeyError:
                raise PluginError(f"user {program.user!r} of the program is not known on this node; add it") from None
            if number == 0:
                raise InvalidRequest("a FUSE program does not run as root; choose another user, or none")
            try:
                return number, pwd.getpwuid(number).pw_gid
            except KeyError:
                return number, number
        rooms = (Room(folder).read() for folder in (self._host.run_dir / "volumes").glob("*/"))
        taken = {record.user for record in rooms if record is not None}
        first = self._config.first_user
        free = next((number for number in range(first, first + _USERS) if number not in taken), None)
        if free is None:
            raise Exhausted(f"all {_USERS} users from {first} on have a volume")
        return free, free
