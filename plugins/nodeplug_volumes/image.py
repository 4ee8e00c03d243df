"""image: a read-only filesystem in a file, or an OCI image in a folder, mounted once for all pods of the node.

Owns: the check of a request against the administrator's roots, the digest before the mount, the mount of squashfs and
erofs, and an optional writable layer for each pod.
Refuses: images outside of the roots, and to write to one. The kernel reads an image as it is, so whoever can write
below a root is trusted as far as the kernel's filesystem is.

Options: `root` (a name in `[plugins.image.config.roots]`; optional if there is only one), `path` (of the file or
folder), `digest` ("sha256:..."; of an OCI image that of its manifest), `overlay` (the size of a writable layer of the
pod's own, such as "1Gi").
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    Host,
    InvalidRequest,
    NotReady,
    PluginError,
    VolumeClaim,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeStage,
    bind,
    hookimpl,
    mount,
    unmount,
)
from nodeplug.fields import FlexDriver, Quantity, parse_quantity
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import beneath, loopdev, oci, overlay, roots
from nodeplug_volumes.digests import Digests, checked_form
from nodeplug_volumes.unpacked import Unpacked

_OPTIONS: Final = ("root", "path", "digest", "overlay")
_SQUASHFS: Final = b"hsqs"
_EROFS: Final = (0xE0F5E1E2).to_bytes(4, "little")
_EROFS_AT: Final = 1024


class ImageRoot(BaseModel):
    """`[plugins.image.config.roots.<name>]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: roots.RootPath = Field(description="an absolute directory of the node")
    require_digest: bool = Field(
        default=False, description="refuse a volume that does not name the digest of its image"
    )


class ImageConfig(BaseModel):
    """`[plugins.image.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/image", description="the FlexVolume driver's name, vendor/driver")
    roots: Mapping[str, ImageRoot] = Field(
        min_length=1, description="the folders of images, by the name that pods use; who can write there is trusted"
    )
    max_overlay: Quantity | None = Field(
        None, ge=overlay.SMALLEST, description="the largest writable layer of a pod; by default pods have none"
    )
    max_unpacked: Quantity = Field(
        20 << 30, ge=1 << 20, description="what OCI images may take on the disk of the state folder, as squashfs files"
    )
    mount_options: tuple[str, ...] = Field(
        ("nosuid", "nodev"), description="options of every mount; pods cannot change them"
    )
    inline: bool = Field(
        default=False, description="over CSI, the author of a pod may name an image, without a PersistentVolume"
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one volume."""

    root_name: str
    root: ImageRoot
    path: str
    digest: str
    overlay: int | None

    @property
    def name(self) -> str:
        """The image, as people and other pods name it."""
        return "/".join([self.root_name, *beneath.parts_of(self.path)])


class Image:
    """The plugin."""

    Config = ImageConfig
    isolation = "thread"

    def __init__(self, config: ImageConfig, host: Host) -> None:
        self._config = config
        self._log = host.log
        self._digests = Digests(host.state_dir / "digests", host.log)
        self._unpacked = Unpacked(host.state_dir / "images", config.max_unpacked, host.log)
        self._layers = overlay.Layers(host.state_dir / "layers", host.run_dir / "layers")

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver; an image keeps its groups and labels."""
        config = self._config
        return [VolumeClaim(config.driver, fs_group="driver", selinux_relabel=False, inline=config.inline)]

    @hookimpl
    def start(self) -> None:
        """Remove what a killed daemon left."""
        self._layers.sweep()
        self._unpacked.sweep()

    @hookimpl
    def health(self) -> None:
        """Not ready while a root is missing, or its disk is."""
        roots.check((name, root.path) for name, root in self._config.roots.items())

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        """Root, path and digest: pods with other layers over one image share it."""
        wish = self._wish(request.options)
        return VolumeId(f"{wish.name}@{wish.digest}" if wish.digest else wish.name)

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        """Check the image, and mount it for the node."""
        wish = self._wish(request.options)
        with self._opened(wish) as descriptor:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                with self._unpacked.opened(oci.Layout(descriptor, wish.name), wish.digest) as squashed:
                    self._mount(squashed, "squashfs", request.staging_path)
                return
            fs_type = _recognise(descriptor, wish.name)
            if wish.digest:
                self._digests.check(descriptor, wish.name, wish.digest)
            self._mount(descriptor, fs_type, request.staging_path)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Bind the staged image read-only, or put a writable layer of the pod's own over it."""
        wish = self._wish(request.options)
        if request.mount_flags:
            raise InvalidRequest("image has no mountOptions; take them out of the volume")
        if wish.overlay is None or request.read_only:
            bind(request.staging_path, request.target_path, read_only=True)
            return
        self._layers.mount(
            request.staging_path,
            request.target_path,
            wish.overlay,
            group=request.fs_group,
            options=self._config.mount_options,
        )

    # --- the image

    @contextmanager
    def _opened(self, wish: Wish) -> Iterator[int]:
        root = roots.opened(wish.root.path)
        try:
            descriptor = beneath.open_file_beneath(root, wish.path, or_directory=True)
        finally:
            os.close(root)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _mount(self, descriptor: int, fs_type: str, place: str) -> None:
        """Mount exactly the file that was checked: erofs as it is (from Linux 6.12 on), squashfs by a loop device."""
        source, options = f"/proc/self/fd/{descriptor}", self._config.mount_options
        if fs_type == "erofs":
            try:
                mount(source, place, fs_type, options=options, read_only=True)
                return
            except PluginError as error:
                self._log.debug("%s; it is mounted by a loop device", error.message)
                unmount(place)
        try:
            with loopdev.attached(Path(source), read_only=True) as loop:
                mount(loop.path, place, fs_type, options=options, read_only=True)
        except PluginError as error:
            if fs_type not in Path("/proc/filesystems").read_text(encoding="ascii").split():
                raise NotReady(
                    f"this kernel has no {fs_type}: {error.message}; make the image of the other kind"
                ) from error
            raise

    # --- the wish

    def _wish(self, options: Mapping[str, str]) -> Wish:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise InvalidRequest(f"image has no option {', '.join(map(repr, unknown))}; it has {', '.join(_OPTIONS)}")
        name, root = roots.chosen(options, self._config.roots)
        path = options.get("path", "")
        if not beneath.parts_of(path):
            raise InvalidRequest("option path is missing; name the file or the folder of the image, below its root")
        digest = checked_form(options.get("digest", ""))
        if root.require_digest and not digest:
            raise InvalidRequest(f"root {name!r} has only images by digest; set the option digest, as sha256:...")
        return Wish(name, root, path, digest, self._layer_size(options))

    def _layer_size(self, options: Mapping[str, str]) -> int | None:
        text = options.get("overlay", "")
        if not text:
            return None
        size, limit = parse_quantity(text), self._config.max_overlay
        if limit is None:
            raise InvalidRequest("option overlay is set, and this node allows no writable layers; see max_overlay")
        if not overlay.SMALLEST <= size <= limit:
            raise InvalidRequest(
                f"option overlay is {show(size)}; this node allows from {show(overlay.SMALLEST)} to {show(limit)}"
            )
        return size


def _recognise(descriptor: int, name: str) -> str:
    try:
        head = os.pread(descriptor, _EROFS_AT + len(_EROFS), 0)
    except OSError as error:
        raise PluginError(f"image {name} cannot be read: {error.strerror}") from error
    if head.startswith(_SQUASHFS):
        return "squashfs"
    if head.endswith(_EROFS) and len(head) == _EROFS_AT + len(_EROFS):
        return "erofs"
    raise InvalidRequest(f"image {name} holds neither squashfs nor erofs; make it by mksquashfs or mkfs.erofs")
