"""The hooks of both drivers: mount once per node by mount(8), bind for each pod, and look without waiting.

Owns: the order of a mount, its time limits, and what a volume's condition says.
Refuses: usage by statfs of kubelet's own, which would hang with the server; and fsGroup: files of a server have the
owners that the server says.
"""

import os
import secrets
import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    Host,
    InvalidRequest,
    NotReady,
    PluginError,
    Secrets,
    TryAgain,
    VolumeClaim,
    VolumePublish,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
    VolumeUnpublish,
    VolumeUnstage,
    hookimpl,
    mount,
    mounted_at,
    unmount,
)
from nodeplug.fields import FlexDriver, Seconds
from nodeplug_volumes.network import mounting, words
from nodeplug_volumes.responding import Silent, look

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SILENT: Final = "its server does not answer"


class NetworkConfig(BaseModel):
    """What the configurations of both drivers have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/network", description="the FlexVolume driver's name, vendor/driver")
    servers: tuple[str, ...] = Field(
        min_length=1, description='the servers that volumes may name; `*` stands for any text, as in "*.example.com"'
    )
    mount_options: tuple[str, ...] = Field(
        ("nosuid", "nodev"), description="options of every mount, after those of the volume"
    )
    mount_timeout: Seconds = Field(60.0, le=100, description="how long mount(8) may take; then it is killed")
    mount_program: str = Field("mount", description="the program, by name or path; it is called as mount(8)")
    inline: bool = Field(
        default=False, description="over CSI, the author of a pod may choose the options, without a PersistentVolume"
    )


class NetworkVolumes:
    """What both drivers do."""

    isolation = "thread"
    fs_type: ClassVar[str]
    helper: ClassVar[str]
    package: ClassVar[str]
    options: ClassVar[Sequence[str]]
    known_words: ClassVar[Mapping[str, str]]

    def __init__(self, config: NetworkConfig, host: Host) -> None:
        self._config = config
        self._host = host
        self._credentials = host.run_dir / "credentials"

    @abstractmethod
    def source(self, options: Mapping[str, str]) -> str:
        """Return what is mounted, such as "server:/path"; InvalidRequest if the options say nothing that can be."""

    def credentials(self, given: Secrets) -> str:
        """Return the file with the secrets; empty if the protocol has none. InvalidRequest if they cannot be used."""
        if given:
            raise InvalidRequest(f"{self.fs_type} takes no Secret; leave secretRef out")
        return ""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver, whose files nobody but the server gives to a group."""
        config = self._config
        return [VolumeClaim(config.driver, fs_group="none", selinux_relabel=False, metrics=False, inline=config.inline)]

    @hookimpl
    def start(self) -> None:
        """Remove the credentials that a killed daemon left."""
        for folder in self._credentials.glob("*"):
            self._forget(folder)

    @hookimpl
    def health(self) -> None:
        """Not ready without mount(8), or without its helper."""
        wanted = [self._config.mount_program]
        if self._config.mount_program == "mount":
            wanted.append(self.helper)
        missing = [name for name in wanted if shutil.which(name, path=_PATH) is None]
        if missing:
            raise NotReady(f"{missing[0]} is missing on this node; install {self.package}")

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        """Mount the filesystem for the node."""
        unknown = sorted(set(request.options) - {*self.options, "mountOptions"})
        if unknown:
            names = ", ".join((*self.options, "mountOptions"))
            raise InvalidRequest(f"{self.fs_type} has no option {', '.join(map(repr, unknown))}; it has {names}")
        source = self.source(request.options)
        asked = [*words.split(request.options.get("mountOptions", "")), *request.mount_flags]
        chosen = [*words.checked(self.known_words, asked), *self._config.mount_options]
        with self._credentials_file(self.credentials(request.secrets)) as file:
            chosen += [f"credentials={file}"] if file else []
            command = [self._config.mount_program, "-t", self.fs_type, "-o", ",".join(chosen), source]
            environment = {"PATH": _PATH, "LC_ALL": "C"}
            try:
                mounting.run(
                    [*command, request.staging_path], request.staging_path, self._config.mount_timeout, environment
                )
            except PluginError:
                mounting.detach(request.staging_path, last=True)
                raise
        if not mounting.answers(request.staging_path):
            mounting.detach(request.staging_path, last=True)
            raise NotReady(f"{source} is mounted, and {_SILENT} within {mounting.LOOK_TIMEOUT:g} s; see the server")

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Bind the filesystem for a pod, if its server answers."""
        if not mounting.answers(request.staging_path):
            raise TryAgain(f"volume {request.volume_id!r} is mounted, and {_SILENT}; see the server")
        mounting.bind(request.staging_path, request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        """Unmount it for a pod, whatever the server does."""
        mounting.detach(request.target_path, last=False)

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Unmount it for the node, whatever the server does."""
        mounting.detach(request.staging_path, last=True)

    @hookimpl
    def volume_stats(self, request: VolumeStatsRequest) -> VolumeStats:
        """Ask the server, for some seconds; its silence is the volume's condition."""
        try:
            usage = look(request.mount_path, mounting.LOOK_TIMEOUT)
        except Silent:
            return VolumeStats(total=0, used=0, available=0, condition=_SILENT)
        except OSError as error:
            return VolumeStats(total=0, used=0, available=0, condition=f"it cannot be read: {error.strerror}")
        return VolumeStats(
            total=usage.total,
            used=usage.used,
            available=usage.available,
            inodes=usage.inodes,
            inodes_used=usage.inodes_used,
        )

    def server(self, options: Mapping[str, str]) -> str:
        """Return the server of a volume; InvalidRequest unless the administrator allows it."""
        name = options.get("server", "")
        if not any(fnmatchcase(name, pattern) for pattern in self._config.servers):
            raise InvalidRequest(f"option server is {name[:80]!r}; this node allows: {', '.join(self._config.servers)}")
        return name

    @contextmanager
    def _credentials_file(self, text: str) -> Iterator[str]:
        """Write the file for mount(8) to a memory of its own, for as long as that runs."""
        if not text:
            yield ""
            return
        folder = self._credentials / secrets.token_hex(8)
        folder.mkdir(mode=0o700, parents=True)
        try:
            options = ("nosuid", "nodev", "noexec", "size=64k", "mode=0700")
            try:
                mount("tmpfs", str(folder), "tmpfs", options=(*options, "noswap"))
            except PluginError:  # before Linux 6.4
                mount("tmpfs", str(folder), "tmpfs", options=options)
            file = folder / "credentials"
            descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
            yield str(file)
        finally:
            self._forget(folder)

    def _forget(self, folder: Path) -> None:
        with suppress(PluginError, OSError):
            if mounted_at(str(folder)) is not None:
                unmount(str(folder), lazy=True)
            folder.rmdir()
