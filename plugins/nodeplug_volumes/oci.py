"""A folder with an OCI image (image-spec, "OCI Image Layout"), as one filesystem in a file.

Owns: the way from a digest to layers, each blob checked by its own digest, and the merge of layers into one tar stream,
of which sqfstar(1) makes a squashfs: nothing of an image is ever unpacked on the node.
Refuses: registries; layers compressed by zstd, which Python cannot read before 3.14; and of a layer: devices, pipes,
and extended attributes.
"""

import gzip
import hashlib
import io
import os
import platform
import posixpath
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final

from nodeplug import Input, InvalidRequest, NotFound
from nodeplug_volumes import beneath

MANIFESTS: Final = frozenset(
    {"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}
)
INDEXES: Final = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
_LAYERS: Final = frozenset(
    {
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
    }
)
_DOCUMENT: Final = Input(what="index and manifest of an image", sender="image authors", size=4 << 20, values=100_000)
_LAYERS_LIMIT: Final = 128
_ENTRIES_LIMIT: Final = 500_000
_PATH_LIMIT: Final = 4095
_DEPTH: Final = 3
_PIECE: Final = 1 << 20
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class TooLarge(Exception):
    """An image has more than there is room for.

    Attributes:
        size: bytes that it has at least.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of an image.

    Attributes:
        digest: of its blob.
        media_type: as the manifest says.
        size: bytes of its blob.
    """

    digest: str
    media_type: str
    size: int


@dataclass(frozen=True, slots=True)
class Layout:
    """An open folder with an OCI image layout.

    Attributes:
        folder: a descriptor of it.
        name: for people.
    """

    folder: int
    name: str

    def manifest(self, wanted: str) -> tuple[str, Sequence[Layer]]:
        """Return the digest of a manifest, and its layers from the lowest to the uppermost.

        Args:
            wanted: the digest of a manifest, or of an index with one for this machine; empty: the only one.

        Raises:
            NotFound: there is no such image.
            InvalidRequest: there are several, or it is nothing that can be mounted.
        """
        entries = self._listed(self._document(self._file("index.json")), 0)
        found = [entry for entry in entries if wanted in {"", entry["digest"], entry["from"]}]
        mine = [entry for entry in found if _runs_here(entry)] or found
        if not mine:
            raise NotFound(f"image {self.name} has no manifest {wanted or 'at all'}")
        if len({entry["digest"] for entry in mine}) > 1:
            raise InvalidRequest(
                f"image {self.name} has {len(mine)} manifests; name one by the option digest: "
                f"{', '.join(sorted({entry['digest'] for entry in mine})[:8])}"
            )
        digest = str(mine[0]["digest"])
        return digest, self._layers(self._blob_document(digest))

    def _listed(self, index: Mapping[str, Any], depth: int, came_from: str = "") -> Iterator[dict[str, Any]]:
        if depth > _DEPTH:
            raise InvalidRequest(f"image {self.name} has indexes of indexes, {_DEPTH} deep; that is refused")
        for entry in _dictionaries(index.get("manifests")):
            digest, media_type = str(entry.get("digest")), entry.get("mediaType")
            if media_type in INDEXES:
                yield from self._listed(self._blob_document(digest), depth + 1, came_from or digest)
            elif media_type in MANIFESTS:
                yield {"digest": digest, "from": came_from, "platform": entry.get("platform")}

    def _layers(self, manifest: Mapping[str, Any]) -> list[Layer]:
        layers = [
            Layer(str(entry.get("digest")), str(entry.get("mediaType")), int(entry.get("size") or 0))
            for entry in _dictionaries(manifest.get("layers"))
        ]
        if not 0 < len(layers) <= _LAYERS_LIMIT:
            raise InvalidRequest(
                f"image {self.name} has {len(layers)} layers; from 1 to {_LAYERS_LIMIT} can be mounted"
            )
        unknown = sorted({layer.media_type for layer in layers} - _LAYERS)
        if unknown:
            raise InvalidRequest(
                f"image {self.name} has layers of type {unknown[0]!r}; tar and tar+gzip can be read: "
                "copy it by `skopeo copy --dest-compress-format gzip`"
            )
        return layers

    # --- blobs

    @contextmanager
    def _file(self, path: str) -> Iterator[IO[bytes]]:
        try:
            descriptor = beneath.open_file_beneath(self.folder, path)
        except NotFound as error:
            raise NotFound(f"image {self.name} is no OCI image layout, or incomplete: it has no {path}") from error
        with os.fdopen(descriptor, "rb") as stream:
            yield stream

    @contextmanager
    def blob(self, digest: str) -> Iterator[IO[bytes]]:
        """Open a blob whose content has that digest.

        Raises:
            InvalidRequest: it has another one, or none that is known.
            NotFound: it is missing.
        """
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise InvalidRequest(f"image {self.name} names a blob {digest[:80]!r}; sha256 alone is known")
        with self._file(f"blobs/sha256/{value}") as stream:
            computed = hashlib.sha256()
            while piece := stream.read(_PIECE):
                computed.update(piece)
            if computed.hexdigest() != value:
                raise InvalidRequest(
                    f"image {self.name}: blob {digest} is damaged; its digest is sha256:{computed.hexdigest()}"
                )
            stream.seek(0)
            yield stream

    def _blob_document(self, digest: str) -> Mapping[str, Any]:
        return self._document(self.blob(digest))

    def _document(self, opened: Any) -> Mapping[str, Any]:
        try:
            with opened as stream:
                found = _DOCUMENT.loads(stream.read(_DOCUMENT.size + 1))
        except ValueError as error:
            raise InvalidRequest(f"image {self.name} has a document that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidRequest(f"image {self.name} has a document that is no JSON object")
        return found


@dataclass(slots=True)
class Merge:
    """Which entries of which layer are seen, as in an overlay of all of them (image-spec, layer.md).

    Attributes:
        room: bytes that there may be.
        directories: by path, of the uppermost layer that has each.
        size: bytes of all files of all layers so far; a hard link has those of its file, since it becomes one.
    """

    room: int
    directories: dict[str, tarfile.TarInfo] = field(default_factory=dict)
    size: int = 0
    _entries: int = 0
    _others: set[str] = field(default_factory=set)
    _hidden: set[str] = field(default_factory=set)
    _opaque: set[str] = field(default_factory=set)

    def add(self, members: Iterable[tarfile.TarInfo]) -> dict[str, int]:
        """Take in a layer, the uppermost first; return where its entries that are seen begin, without directories.

        Raises:
            TooLarge: there is not enough room.
            InvalidRequest: an entry leads out of the image, or there are too many.
        """
        hidden, opaque, seen = set[str](), set[str](), dict[str, int]()
        sizes: dict[str, int] = {}
        for member in members:
            path = clean(member.name)
            sizes[path] = size = sizes.get(clean(member.linkname), 0) if member.islnk() else member.size
            self._count(size)
            folder, name = posixpath.split(path)
            if name == _OPAQUE:
                opaque.add(folder)
            elif name.startswith(_WHITEOUT):
                hidden.add(posixpath.join(folder, name.removeprefix(_WHITEOUT)))
            elif self._is_seen(path):
                if member.isdir():
                    self.directories.setdefault(path, member)
                elif path not in self.directories and (member.isfile() or member.issym() or member.islnk()):
                    seen[path] = member.offset
        self._others |= seen.keys()
        self._hidden |= hidden
        self._opaque |= opaque
        return seen

    def _count(self, size: int) -> None:
        self._entries += 1
        self.size += size
        if self._entries > _ENTRIES_LIMIT:
            raise InvalidRequest(f"it has more than {_ENTRIES_LIMIT} entries")
        if self.size > self.room:
            raise TooLarge(self.size)

    def _is_seen(self, path: str) -> bool:
        if path in self._others or path in self._hidden:
            return False
        above = list(_above(path))
        return not any(one in self._hidden or one in self._others or one in self._opaque for one in above)


def write(layout: Layout, layers: Sequence[Layer], room: int, into: IO[bytes]) -> None:
    """Write what all layers together show as one tar stream.

    Args:
        layout: of the image.
        layers: from the lowest to the uppermost.
        room: bytes at most.
        into: a pipe or file.

    Raises:
        InvalidRequest: a layer is damaged, or leads out of the image.
        TooLarge: there is more than there is room for.
        BrokenPipeError: nobody reads it any more.
    """
    merge, seen = Merge(room), []
    try:
        for layer in reversed(layers):
            with layout.blob(layer.digest) as stream, tarfile.open(fileobj=stream) as archive:
                seen.append((layer, merge.add(_unkept(archive))))
        with tarfile.open(fileobj=into, mode="w|", format=tarfile.PAX_FORMAT) as merged:
            for path, member in sorted(merge.directories.items()):
                if path:
                    merged.addfile(_plain(path, member))
            for layer, entries in seen:
                with layout.blob(layer.digest) as stream, tarfile.open(fileobj=stream) as archive:
                    _copy(archive, entries, merged)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError, UnicodeError) as error:
        raise InvalidRequest(f"image {layout.name} has a layer that cannot be read: {error}") from error


def _unkept(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Iterate over members without the archive keeping each: it has a list of them for whoever asks by name."""
    for member in archive:
        yield member
        archive.members = []  # type: ignore[attr-defined]  # public, and missing in typeshed


def _copy(archive: tarfile.TarFile, entries: Mapping[str, int], merged: tarfile.TarFile) -> None:
    for member in archive:
        path = clean(member.name)
        if entries.get(path) != member.offset:
            continue
        plain = _plain(path, member)
        if member.isfile() or member.islnk():  # a link, too: what it leads to may be hidden by a layer above
            content = archive.extractfile(member)
            if content is None:
                raise InvalidRequest(f"{path!r} is a link to nothing in its layer")
            plain.type, plain.linkname = tarfile.REGTYPE, ""
            plain.size = content.seek(0, io.SEEK_END)
            content.seek(0)
            merged.addfile(plain, content)
        else:
            merged.addfile(plain)


def _plain(path: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    plain = tarfile.TarInfo(path)
    plain.type, plain.mode, plain.uid, plain.gid = member.type, member.mode & 0o7777, member.uid, member.gid
    plain.size, plain.mtime, plain.linkname = member.size, member.mtime, member.linkname if member.issym() else ""
    return plain


def clean(name: str) -> str:
    """Return the path of an entry below the root of its image; empty for the root itself.

    Raises:
        InvalidRequest: it leads out of it, or is longer than any path (PATH_MAX).
    """
    if len(name) > _PATH_LIMIT:
        raise InvalidRequest(f"a layer has an entry {name[:200]!r} with a path of {len(name)} characters")
    path = posixpath.normpath("/" + name.lstrip("/"))
    if ".." in name.split("/") or "\0" in name:
        raise InvalidRequest(f"a layer has an entry {name[:200]!r}, which leads out of the image")
    return path.strip("/")


def _above(path: str) -> Iterator[str]:
    while path:
        path = posixpath.dirname(path)
        yield path


def _dictionaries(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _runs_here(entry: Mapping[str, Any]) -> bool:
    wanted = entry["platform"]
    machine = platform.machine()
    return isinstance(wanted, dict) and wanted.get("architecture") == _MACHINES.get(machine, machine)
