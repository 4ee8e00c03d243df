"""Kubelet's side of FlexVolume, acted out on a driver's real executable.

Owns: what kubelet does around each call (pkg/volume/flexvolume): one stream of stdout and stderr that must be one JSON
object, the exit status, "Not supported" remembered per command, the target's directory, and the check for a mount point
before mount.
Refuses: knowledge of the driver: anything that kubelet could not know. It waits between repeats no more than asked.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from nodeplug.flex import commands as cmd
from nodeplug.flex.codec import encode_argv
from nodeplug.flex.commands import Command, VolumeOptions, verb_of
from nodeplug.mounts import bind, mounted_at, unmount
from nodeplug.values import Pod, Secrets

_DEFAULTS: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "attach": True,
        "selinuxRelabel": True,
        "supportsMetrics": False,
        "fsGroup": True,
        "requiresFSResize": True,
    }
)
"""What kubelet takes for granted where `init` says nothing (flexvolume/driver-call.go)."""


class FlexFailure(Exception):
    """A call failed, as kubelet sees it; the text is what kubelet would log, argv included where it does that."""


class FlexNotSupported(Exception):
    """The driver does not do this verb; kubelet does its own default instead, until the driver is probed again."""


@dataclass(frozen=True, slots=True)
class FlexVolume:
    """A pod's `flexVolume`, or a PersistentVolume's.

    Attributes:
        name: the volume's name in the pod, or the PersistentVolume's.
        options: of the driver.
        secrets: of the Secret behind `secretRef`, plain.
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
        timeout: seconds for one call, or None. Kubelet has none but for waitforattach; a test may want one.
        calls: the argv of every execution, verb first.
    """

    plugin_dir: Path
    kubelet_root: Path
    driver: str
    node: str = "node-1"
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    timeout: float | None = None
    calls: list[tuple[str, ...]] = field(default_factory=list)
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
        answer = self.call(cmd.Init())
        told = answer.get("capabilities") or {}
        self._capabilities = {name: bool(told.get(name, default)) for name, default in _DEFAULTS.items()}
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
        argv = encode_argv(command)
        self.calls.append(argv)
        done = self._execute(argv)
        answer = _parse(verb, done.stdout)
        status = str(answer.get("status", ""))
        if status == "Not supported":
            self._unsupported.add(verb)
            raise FlexNotSupported(f"{verb}: {answer.get('message', '')}")
        if status == "Success" and done.returncode == 0:
            return answer
        if status == "Success":
            raise FlexFailure(f"{verb}: driver bug: exit status {done.returncode} but no error in the response")
        told = f"{verb} command failed, status: {status}, reason: {answer.get('message', '')}"
        if done.returncode != 0:
            told = f"driver call failed: executable: {self.executable}, args: {list(argv)}; {told}"
        raise FlexFailure(told)

    def _execute(self, argv: tuple[str, ...]) -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                [str(self.executable), *argv],
                cwd="/",
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # one stream: any byte on stderr breaks the JSON
                timeout=self.timeout,
                check=False,
            )
        except OSError as error:
            raise FlexFailure(f"{argv[0]}: cannot execute {self.executable}: {error.strerror}") from error
        except subprocess.TimeoutExpired:
            raise FlexFailure(f"{argv[0]} did not answer within {self.timeout:g} s") from None

    # --- what kubelet does for a pod

    def mount(self, pod: Pod, volume: FlexVolume, *, fs_group: int | None = None) -> Path:
        """Give a pod its volume.

        Args:
            pod: its uid names its directory.
            volume: what it asks for.
            fs_group: the pod's fsGroup.

        Returns:
            The target. When it was a mount point already, the driver was not called.

        Raises:
            FlexFailure: as kubelet reports it; the target's directory is removed again.
        """
        device = self._attached(volume) if self.capabilities["attach"] else ""
        target = self.target(pod, volume.name)
        if mounted_at(str(target)) is not None:
            return target
        target.mkdir(mode=0o750, parents=True, exist_ok=True)
        options = replace(_options(volume), pod=pod, fs_group=fs_group, secrets=Secrets(volume.secrets))
        try:
            self.call(cmd.Mount(str(target), options))
        except FlexNotSupported:
            self._bind_device(device, volume, target)
        except FlexFailure:
            with suppress(OSError):
                target.rmdir()
            raise
        return target

    def unmount(self, pod: Pod, name: str) -> None:
        """Take a volume from a pod; a missing target is success without a call.

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
        """Attach, wait for the device and mount it: what comes before mount for drivers with attach."""
        options = _options(volume)
        device, target = "", self.device_target(volume.name)
        with suppress(FlexNotSupported):
            self.call(cmd.GetVolumeName(options))
        with suppress(FlexNotSupported):
            device = str(self.call(cmd.Attach(options, self.node)).get("device", ""))
        with suppress(FlexNotSupported):
            device = str(self.call(cmd.WaitForAttach(device, options)).get("device", device))
        if mounted_at(str(target)) is None:
            target.mkdir(mode=0o750, parents=True, exist_ok=True)
            with suppress(FlexNotSupported):
                self.call(cmd.MountDevice(str(target), device, options))
        return str(target)

    def _bind_device(self, device_target: str, volume: FlexVolume, target: Path) -> None:
        """Kubelet's default for a mount that is not supported: a bind mount of the device's directory."""
        source = device_target or str(self.device_target(volume.name))
        if not Path(source).is_dir():
            raise FlexFailure(f"mount failed: exit status 32: {source} does not exist")
        bind(source, str(target), read_only=volume.read_only)


def _options(volume: FlexVolume) -> VolumeOptions:
    return VolumeOptions(
        fs_type=volume.fs_type, read_only=volume.read_only, volume_name=volume.name, own=dict(volume.options)
    )


def _parse(verb: str, output: bytes) -> dict[str, Any]:
    try:
        document = json.loads(output)
    except ValueError as error:
        raise FlexFailure(
            f"failed to unmarshal output for command: {verb}, output: {output!r}, error: {error}"
        ) from None
    if not isinstance(document, dict):
        raise FlexFailure(f"failed to unmarshal output for command: {verb}, output: {output!r}, error: not an object")
    known = {"status", "message"}  # Go matches keys without regard to case
    return {key.lower() if key.lower() in known else key: value for key, value in document.items()}
