"""hostdir: directories of the node below roots that the administrator allows.

Owns: the check of a request against the roots, and the bind mount of exactly the directory that was checked.
Refuses: any way out of a root: absolute paths, `..`, symlinks, and races between check and mount. Unlike a hostPath
volume, which names any path of the node, a pod names a root and a path below it.

Options: `root` (a name in `[plugins.hostdir.config.roots]`; optional if there is only one), `path` (relative;
default: the root itself), `create` ("true" creates missing directories), `mode` (octal, of created directories; default
0755), `readOnly` ("true").
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    Example,
    FsGroup,
    Host,
    InvalidRequest,
    NotFound,
    VolumeClaim,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    bind,
    hookimpl,
    mounted_at,
    unmount,
)
from nodeplug.fields import FlexDriver
from nodeplug_volumes import beneath, roots

_OPTIONS: Final = ("root", "path", "create", "mode", "readOnly")
_MODE: Final = re.compile(r"0?[0-7]{3,4}")


class Root(BaseModel):
    """`[plugins.hostdir.config.roots.<name>]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: roots.RootPath = Field(description="an absolute directory of the node")
    read_only: bool = Field(default=False, description="pods cannot write below this root")
    create: bool = Field(default=False, description="pods may create missing directories below this root")


class HostDirConfig(BaseModel):
    """`[plugins.hostdir.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/hostdir", description="the FlexVolume driver's name, vendor/driver")
    roots: Mapping[str, Root] = Field(min_length=1, description="the allowed roots, by the name that pods use")
    fs_group: bool = Field(
        default=False, description="let kubelet change the group of the whole tree to the pod's fsGroup, at each mount"
    )
    selinux_relabel: bool = Field(default=False, description="let kubelet relabel the whole tree, at each mount")


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one volume."""

    root_name: str
    root: Root
    path: str
    create: bool
    mode: int
    read_only: bool


class HostDir:
    """The plugin."""

    Config = HostDirConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "config": {"roots": {"data": {"path": "{scratch}", "create": True}}},
        "volume_options": {"root": "data", "path": "one/volume", "create": "true"},
        "keeps_data": True,
    }

    def __init__(self, config: HostDirConfig, host: Host) -> None:
        self._config = config
        self._log = host.log

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver; kubelet does not change the tree unless configured."""
        config = self._config
        fs_group: FsGroup = "kubelet" if config.fs_group else "driver"
        return [VolumeClaim(config.driver, fs_group=fs_group, selinux_relabel=config.selinux_relabel)]

    @hookimpl
    def health(self) -> None:
        """Not ready while a root is missing, or its disk is."""
        roots.check((name, root.path) for name, root in self._config.roots.items())

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        """Root and path."""
        wish = self._wish(request.options)
        return VolumeId("/".join([wish.root_name, *beneath.parts_of(wish.path)]))

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Open the directory below its root, and bind exactly that one."""
        wish = self._wish(request.options)
        if request.mount_flags:
            raise InvalidRequest("hostdir binds directories, and has no mountOptions; take them out of the volume")
        read_only = request.read_only or wish.read_only or wish.root.read_only
        descriptor = self._open(wish, request.fs_group, must_exist=request.must_exist)
        try:
            self._bind(descriptor, request.target_path, read_only=read_only)
        finally:
            os.close(descriptor)

    def _open(self, wish: Wish, group: int | None, *, must_exist: bool) -> int:
        root = roots.opened(wish.root.path)
        try:
            if wish.create and not must_exist:
                return beneath.make_beneath(root, wish.path, wish.mode, group)
            return beneath.open_beneath(root, wish.path)
        except NotFound as error:
            if not must_exist:
                raise
            raise NotFound(
                f"option path is {wish.path!r}: there is no such directory below its root, and none is created for a "
                "PersistentVolume, because it may be on another node; give the volume the node that it is on"
            ) from error
        finally:
            os.close(root)

    def _bind(self, descriptor: int, target: str, *, read_only: bool) -> None:
        found = mounted_at(target)
        if found is not None:
            if beneath.same_directory(descriptor, target) and (found.read_only or not read_only):
                return
            unmount(target)
        bind(f"/proc/self/fd/{descriptor}", target, read_only=read_only)

    def _wish(self, options: Mapping[str, str]) -> Wish:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise InvalidRequest(f"hostdir has no option {', '.join(map(repr, unknown))}; it has {', '.join(_OPTIONS)}")
        name, root = roots.chosen(options, self._config.roots)
        path = options.get("path", "")
        beneath.parts_of(path)
        create = _flag(options, "create")
        if create and not root.create:
            raise InvalidRequest(f"option create is set, but root {name!r} does not allow that directories are created")
        return Wish(name, root, path, create, _mode(options), _flag(options, "readOnly"))


def _flag(options: Mapping[str, str], key: str) -> bool:
    text = options.get(key, "false")
    if text not in {"true", "false"}:
        raise InvalidRequest(f"option {key} is {text[:40]!r}; it must be 'true' or 'false'")
    return text == "true"


def _mode(options: Mapping[str, str]) -> int:
    text = options.get("mode", "0755")
    if not _MODE.fullmatch(text):
        raise InvalidRequest(f"option mode is {text[:40]!r}; it must be octal, such as 0750")
    return int(text, 8)
