"""Kubelet's side of FlexVolume, on a driver's real executable.

Owns: what kubelet does around each call (pkg/volume/flexvolume): one stream of stdout and stderr that must be one JSON
object, the exit status, "Not supported" remembered per command, the target's directory, the check for a mount point
before mount, and the pod's fsGroup after it.
Refuses: knowledge of the driver: anything that kubelet could not know. It waits between retries only when asked to.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.mounts import mounted_at, unmount
from nodeplug.contract.values import Pod, Secrets
from nodeplug.flex import commands as cmd
from nodeplug.flex.commands import Command, VolumeOptions, verb_of
from nodeplug.process.environment import copy_environment
from nodeplug.testing.flex_caller.answers import FlexFailure, FlexNotSupported, judge, parse, read_capabilities
from nodeplug.testing.flex_caller.argv import encode_argv
from nodeplug.testing.flex_caller.defaults import Backoff, bind_device, mount_device, own

_WAIT_FOR_ATTACH: Final = 600.0
_NEW_GROUP: Final = "kubernetes.io/mounterArgs.FsGroup"
_OLD_GROUP: Final = "kubernetes.io/fsGroup"


@dataclass(frozen=True, slots=True)
class FlexVolume:
    """A pod's `flexVolume`, or a PersistentVolume's.

    Attributes:
        name: the volume's name in the pod, or the PersistentVolume's.
        options: of the driver.
        secrets: of the Secret behind `secretRef`, decoded.
        read_only: `readOnly`.
        fs_type: `fsType`.
    """

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    read_only: bool = False
    fs_type: str = ""


@dataclass(slots=True)
class FlexCaller:
    """One driver on one node, called as kubelet calls it.

    Attributes:
        plugin_dir: kubelet's --volume-plugin-dir.
        kubelet_root: kubelet's --root-dir; pods' directories are made below it.
        driver: `vendor/driver`, or `driver`.
        node: the node's name, for drivers with attach.
        env: the environment of the driver: kubelet's own.
        timeout: seconds for one call, or None. Kubelet has one only for waitforattach: 10 min; a test may want one.
        calls: the argv of every execution, verb first.
        old_arguments: speak as old kubelets do: mount with a device (up to 1.5), isattached with the node first, and
            the group as `kubernetes.io/fsGroup` (before 1.15).
        sees_binds: whether a bind mount of the same filesystem is recognised as a mount point. Kubelets that compare
            `st_dev` do not recognise it, and call mount again.
        backoff: for `mount_until` and `unmount_until`.
    """

    plugin_dir: Path
    kubelet_root: Path
    driver: str
    node: str = "node-1"
    env: Mapping[str, str] = field(default_factory=copy_environment)
    timeout: float | None = None
    calls: list[tuple[str, ...]] = field(default_factory=list)
    old_arguments: bool = False
    sees_binds: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    _capabilities: Mapping[str, bool] | None = None
    _unsupported: set[str] = field(default_factory=set)

    @property
    def executable(self) -> Path:
        """`<plugin_dir>/<vendor~driver>/<driver>`."""
        return self.plugin_dir / self._escaped / self.driver.rpartition("/")[2]

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """What `init` said, with kubelet's defaults; the first use probes."""
        return self.probe() if self._capabilities is None else self._capabilities

    @property
    def _escaped(self) -> str:
        return self.driver.replace("/", "~")

    def target(self, pod: Pod, name: str) -> Path:
        """Where kubelet wants a volume of a pod."""
        return self.kubelet_root / "pods" / pod.uid / "volumes" / self._escaped / name

    def device_target(self, name: str) -> Path:
        """Where kubelet wants the device of a volume, for drivers with attach."""
        return self.kubelet_root / "plugins/kubernetes.io/flexvolume" / self.driver / "mounts" / name

    # --- single calls

    def probe(self) -> Mapping[str, bool]:
        """Run `init` and forget what was not supported, as after a change in the driver's directory.

        Raises:
            FlexFailure: the driver is not usable.
        """
        self._unsupported.clear()
        self._capabilities = read_capabilities(self.call(cmd.Init()))
        return self._capabilities

    def call(self, command: Command) -> dict[str, Any]:
        """Execute the driver once and judge its answer.

        Returns:
            The answer; keys as the driver spelled them, but `status` and `message` in lower case.

        Raises:
            FlexFailure: any answer but a success.
            FlexNotSupported: now, or remembered from before (then nothing is executed).
        """
        verb = verb_of(command)
        if verb in self._unsupported:
            raise FlexNotSupported(f"{verb}: remembered until the driver is probed again")
        argv = self._argv(command)
        self.calls.append(argv)
        done = self._execute(argv)
        try:
            return judge(verb, parse(verb, done.stdout), done.returncode, str(self.executable), argv)
        except FlexNotSupported:
            self._unsupported.add(verb)
            raise

    def _argv(self, command: Command) -> tuple[str, ...]:
        argv = encode_argv(command)
        if not self.old_arguments:
            return argv
        if isinstance(command, cmd.IsAttached):
            return (argv[0], argv[2], argv[1])
        return tuple(_with_old_group(text) if text.startswith("{") else text for text in argv)

    def _execute(self, argv: tuple[str, ...]) -> "subprocess.CompletedProcess[bytes]":
        seconds = _WAIT_FOR_ATTACH if self.timeout is None and argv[0] == "waitforattach" else self.timeout
        try:
            return subprocess.run(
                [str(self.executable), *argv],
                cwd="/",
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # one stream: any byte on stderr breaks the JSON
                timeout=seconds,
                check=False,
            )
        except OSError as error:
            raise FlexFailure(f"{argv[0]}: cannot execute {self.executable}: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise FlexFailure(f"{argv[0]} did not answer within {seconds:g} s") from None

    # --- what kubelet does for a pod

    def mount(self, pod: Pod, volume: FlexVolume, *, fs_group: int | None = None, policy: str = "Always") -> Path:
        """Give a pod its volume.

        Args:
            pod: its uid names its directory.
            volume: what it asks for.
            fs_group: the pod's fsGroup. The whole tree gets it, unless the driver's capability fsGroup is off or the
                volume is read-only.
            policy: the pod's fsGroupChangePolicy.

        Returns:
            The target. When it was a mount point already, the driver was not called.

        Raises:
            FlexFailure: as kubelet reports it; the target's directory is removed again.
        """
        device = self._attached(volume) if self.capabilities["attach"] else ""
        source = str(self.device_target(volume.name))
        target = self.target(pod, volume.name)
        if self._is_mount_point(target):
            return target
        target.mkdir(mode=0o750, parents=True, exist_ok=True)
        options = replace(_options(volume), pod=pod, fs_group=fs_group, secrets=Secrets(volume.secrets))
        old_device = device if self.old_arguments else ""
        try:
            self.call(cmd.Mount(str(target), options, old_device))
        except FlexNotSupported:
            bind_device(source, str(target), read_only=volume.read_only)
        except FlexFailure:
            with suppress(OSError):
                target.rmdir()
            raise
        if fs_group is not None and self.capabilities["fsGroup"] and not volume.read_only:
            own(target, fs_group, policy=policy)
        return target

    def mount_until(self, pod: Pod, volume: FlexVolume, tries: int, *, fs_group: int | None = None) -> Path:
        """Mount, with at most `tries` attempts and kubelet's waits between them.

        Raises:
            FlexFailure: of the last try.
        """
        operation = f"mount {pod.uid} {volume.name}"
        return self.backoff.repeat(operation, lambda: self.mount(pod, volume, fs_group=fs_group), tries)

    def unmount_until(self, pod: Pod, name: str, tries: int) -> None:
        """Unmount, with at most `tries` attempts and kubelet's waits between them.

        Raises:
            FlexFailure: of the last try.
        """
        self.backoff.repeat(f"unmount {pod.uid} {name}", lambda: self.unmount(pod, name), tries)

    def _is_mount_point(self, path: Path) -> bool:
        if self.sees_binds:
            return mounted_at(str(path)) is not None
        try:
            return path.stat().st_dev != path.parent.stat().st_dev
        except FileNotFoundError:
            return False
        except OSError:  # a corrupted mount counts as one
            return True

    def attributes(self, volume: FlexVolume) -> Mapping[str, bool]:
        """Return what the container runtime learns about a mounted volume (flexvolume/mounter.go, GetAttributes)."""
        return {
            "readOnly": volume.read_only,
            "managed": not volume.read_only,
            "selinuxRelabel": self.capabilities["selinuxRelabel"],
        }

    def metrics(self, pod: Pod, name: str) -> os.statvfs_result | None:
        """Measure a pod's volume; None when the driver's capability supportsMetrics is off."""
        return os.statvfs(self.target(pod, name)) if self.capabilities["supportsMetrics"] else None

    def expand_fs(self, pod: Pod, volume: FlexVolume, *, new_size: int, old_size: int, device: str = "") -> bool:
        """Grow the filesystem of a mounted PersistentVolume; kubelet never does so for a pod's own flexVolume.

        Args:
            pod: who has it mounted.
            volume: what; its secrets are not sent.
            new_size: bytes.
            old_size: bytes.
            device: what waitforattach answered.

        Returns:
            Whether the driver was asked: not if its capability requiresFSResize is off.

        Raises:
            FlexFailure: as kubelet reports it.
            FlexNotSupported: kubelet would grow the filesystem on the device itself.
        """
        if not self.capabilities["requiresFSResize"]:
            return False
        attach = self.capabilities["attach"]
        path = self.device_target(volume.name) if attach else self.target(pod, volume.name)
        self.call(cmd.ExpandFs(_options(volume), device, str(path), new_size, old_size))
        return True

    def is_attached(self, volume: FlexVolume) -> bool | None:
        """Ask whether a volume is attached, as the controller does from time to time; None when nobody knows.

        Raises:
            FlexFailure: as the controller reports it.
        """
        try:
            return bool(self.call(cmd.IsAttached(_options(volume), self.node)).get("attached"))
        except FlexNotSupported:
            return None

    def unmount(self, pod: Pod, name: str) -> None:
        """Unmount a pod's volume; a missing target is success without a call.

        Raises:
            FlexFailure: as kubelet reports it, also when the directory cannot be removed afterwards.
        """
        target = self.target(pod, name)
        if mounted_at(str(target)) is None and not target.exists():  # a dead mount is there, though nobody can stat it
            return
        try:
            self.call(cmd.Unmount(str(target)))
        except FlexNotSupported:
            unmount(str(target))
        try:
            with suppress(FileNotFoundError):  # a driver may remove the directory itself (flexvolume/unmounter.go)
                target.rmdir()
        except OSError as error:
            raise FlexFailure(f"unmount: cannot remove {target}: {error.strerror}") from error

    def detach(self, name: str) -> None:
        """Undo the device's part of a volume, after its last pod; for drivers with attach.

        Raises:
            FlexFailure: as kubelet reports it.
        """
        target = self.device_target(name)
        if mounted_at(str(target)) is not None:
            try:
                self.call(cmd.UnmountDevice(str(target)))
            except FlexNotSupported:
                unmount(str(target))
        with suppress(FileNotFoundError):
            target.rmdir()
        with suppress(FlexNotSupported):
            self.call(cmd.Detach(name, self.node))

    def _attached(self, volume: FlexVolume) -> str:
        """Attach, wait for the device, mount it and return it: what precedes mount for drivers with attach."""
        options = _options(volume)
        device, target = "", self.device_target(volume.name)
        with suppress(FlexNotSupported):
            self.call(cmd.GetVolumeName(options))
        with suppress(FlexNotSupported):
            device = str(self.call(cmd.Attach(options, self.node)).get("device", ""))
        with suppress(FlexNotSupported):
            device = str(self.call(cmd.WaitForAttach(device, options)).get("device", device))
        if not self._is_mount_point(target):
            target.mkdir(mode=0o750, parents=True, exist_ok=True)
            try:
                self.call(cmd.MountDevice(str(target), device, options))
            except FlexNotSupported:
                mount_device(device, str(target), volume.fs_type, read_only=volume.read_only)
        return device


def _options(volume: FlexVolume) -> VolumeOptions:
    return VolumeOptions(
        fs_type=volume.fs_type, read_only=volume.read_only, volume_name=volume.name, own=dict(volume.options)
    )


def _with_old_group(text: str) -> str:
    """Write the fsGroup under the key that kubelets before 1.15 use."""
    pairs = json.loads(text)
    return json.dumps({_OLD_GROUP if key == _NEW_GROUP else key: value for key, value in pairs.items()}, sort_keys=True)
