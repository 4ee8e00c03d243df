"""Folders with OCI images as volumes: layers, digests, and what a layer must not do."""

import gzip
import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import mount
from nodeplug_volumes import merging
from nodeplug_volumes.image import Image, ImageConfig

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices", "has_sqfstar")]
DRIVER = "nodeplug/image"
MIB = 1 << 20
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
TAR = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
Entry = tuple[str, bytes | str | None]
"""A name with the content of a file, `-> target` of a symlink, `=> target` of a hard link, or None for a directory."""


@pytest.fixture(scope="session")
def has_sqfstar() -> None:
    need("sqfstar")


def layer(*entries: Entry) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
            elif isinstance(content, str):
                info.type = tarfile.SYMTYPE if content.startswith("->") else tarfile.LNKTYPE
                info.linkname = content[3:]
                archive.addfile(info)
            else:
                info.size, info.uid, info.gid, info.mode = len(content), 1000, 1001, 0o640
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


class Layout:
    """An OCI image layout that is written by hand (image-spec 1.1, image-layout.md)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs" / "sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes) -> str:
        name = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / "sha256" / name).write_bytes(content)
        return f"sha256:{name}"

    def document(self, media_type: str, document: dict[str, Any], **more: Any) -> dict[str, Any]:
        content = json.dumps({"schemaVersion": 2, "mediaType": media_type} | document).encode()
        return {"mediaType": media_type, "digest": self.blob(content), "size": len(content)} | more

    def manifest(self, *layers: bytes, media_type: str = GZIP, **more: Any) -> dict[str, Any]:
        packed = [gzip.compress(one) if media_type == GZIP else one for one in layers]
        blobs = [{"mediaType": media_type, "digest": self.blob(one), "size": len(one)} for one in packed]
        return self.document(MANIFEST, {"layers": blobs}, **more)

    def index(self, *manifests: dict[str, Any]) -> None:
        (self.root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))


@pytest.fixture
def layout(area: Path) -> Layout:
    (area / "images").mkdir()
    return Layout(area / "images" / "model")


@pytest.fixture
def make(make_node: Any, make_host: Any, area: Path) -> Callable[..., Any]:
    def build(**config: Any) -> Any:
        roots = {"main": {"path": str(area / "images")}}
        plugin = Image(ImageConfig.model_validate({"roots": roots, "max_overlay": "64Mi"} | config), make_host("image"))
        plugin.start()
        return make_node(image=plugin)

    return build


@pytest.fixture
def node(make: Callable[..., Any]) -> Any:
    return make()


def tree(target: Path) -> dict[str, str]:
    """What a pod sees, by path."""
    found = {}
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = path.read_text() if path.is_file() else "/"
    return found


def mounted(node: Any, **options: str) -> Path:
    target: Path = node.target("a")
    answer = node.mount(DRIVER, target, {"path": "model"} | options)
    assert answer == {"status": "Success"}
    return target


def made(area: Path) -> list[str]:
    return sorted(path.name for path in area.glob("hosts/image/*/images/*"))


LOWER = layer(
    *(("./etc/", None), ("etc/old", b"old"), ("etc/kept", b"kept"), ("lib", None), ("lib/a", b"a"), ("gone", b"x")),
    *(("dir", None), ("dir/below", b"b"), ("opaque", None), ("opaque/hidden", b"h"), ("link", "-> etc/kept")),
    *(("hard", "=> etc/old"), ("file", b"file")),
)
UPPER = layer(
    *(("etc/old", b"new"), (".wh.gone", b""), ("lib", "-> etc"), ("dir", b"a file now"), ("file", None)),
    *(("opaque/.wh..wh..opq", b""), ("opaque/shown", b"s"), ("file/inside", b"i")),
)
BOTH = {"etc": "/", "etc/old": "new", "etc/kept": "kept", "lib": "-> etc", "dir": "a file now", "link": "-> etc/kept"}
BOTH |= {"opaque": "/", "opaque/shown": "s", "hard": "old", "file": "/", "file/inside": "i"}


@pytest.mark.parametrize("media_type", [GZIP, TAR])
def test_a_pod_sees_what_all_layers_together_show(node: Any, layout: Layout, media_type: str) -> None:
    layout.index(layout.manifest(LOWER, UPPER, media_type=media_type))
    target = mounted(node)
    assert tree(target) == BOTH
    status = (target / "etc" / "old").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1000, 1001, 0o640)
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "new").write_text("")


def test_an_image_is_made_once_and_shared_by_all_pods(node: Any, layout: Layout, area: Path, loops: Any) -> None:
    entry = layout.manifest(LOWER)
    layout.index(entry)
    one, two = node.target("a"), node.target("b")
    for target in (one, two):
        node.mount(DRIVER, target, {"path": "model", "digest": entry["digest"]})
    assert len(loops()) == 1
    before = [path.stat().st_ino for path in area.glob("hosts/image/*/images/*")]
    for target in (one, two):
        node.unmount(DRIVER, target)
    assert loops() == {}
    node.mount(DRIVER, one, {"path": "model", "digest": entry["digest"]})
    assert (one / "etc" / "kept").read_text() == "kept"
    assert [path.stat().st_ino for path in area.glob("hosts/image/*/images/*")] == before


@pytest.mark.programs("mkfs.ext4")
def test_a_pod_may_write_to_a_layer_of_its_own_over_an_image(node: Any, layout: Layout) -> None:
    layout.index(layout.manifest(LOWER))
    target = mounted(node, overlay="8Mi")
    (target / "etc" / "old").write_text("mine")
    assert (target / "etc" / "old").read_text() == "mine"


def test_an_image_for_several_machines_is_the_one_for_this_machine(node: Any, layout: Layout) -> None:
    ours = {"os": "linux", "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]}
    index = layout.document(
        INDEX,
        {
            "manifests": [
                layout.manifest(layer(("machine", b"other")), platform={"os": "linux", "architecture": "s390x"}),
                layout.manifest(layer(("machine", b"this")), platform=ours),
            ]
        },
    )
    layout.index(index)
    assert tree(mounted(node)) == {"machine": "this"}
    node.unmount(DRIVER, node.target("a"))
    assert tree(mounted(node, digest=index["digest"])) == {"machine": "this"}


def test_an_image_of_several_is_named_by_its_digest(node: Any, layout: Layout) -> None:
    one, two = (layout.manifest(layer(("name", name))) for name in (b"one", b"two"))
    layout.index(one, two)
    answer = node.mount(DRIVER, node.target("a"), {"path": "model"})
    assert "has 2 manifests; name one by the option digest" in answer["message"]
    assert tree(mounted(node, digest=two["digest"])) == {"name": "two"}


def nested(layout: Layout, depth: int) -> None:
    entry = layout.manifest(layer(("a", b"x")))
    for _ in range(depth):
        entry = layout.document(INDEX, {"manifests": [entry]})
    layout.index(entry)


def test_an_image_may_be_in_an_index_of_an_index(node: Any, layout: Layout) -> None:
    nested(layout, 3)
    assert tree(mounted(node)) == {"a": "x"}


# --- what is refused


def damaged(layout: Layout) -> None:
    layout.index(layout.manifest(LOWER))
    blob = max((layout.root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")


def missing(layout: Layout) -> None:
    layout.index(layout.manifest(LOWER))
    max((layout.root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size).unlink()


def linked(layout: Layout) -> None:
    missing(layout)
    (layout.root / "blobs" / "sha256").rename(layout.root / "elsewhere")
    (layout.root / "blobs" / "sha256").symlink_to(layout.root / "elsewhere")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda layout: None, "is no OCI image layout, or incomplete: it has no index.json"),
        (lambda layout: (layout.root / "index.json").write_text("{"), "a document that is no JSON"),
        (lambda layout: layout.index(), "has no manifest at all"),
        (lambda layout: layout.index(layout.manifest()), "has 0 layers"),
        (lambda layout: layout.index(layout.manifest(LOWER, media_type=f"{TAR}+zstd")), "has layers of type"),
        (lambda layout: layout.index(layout.manifest(b"no tar", media_type=TAR)), "a layer that cannot be read"),
        (lambda layout: layout.index(layout.manifest(b"no gzip" * 99, media_type=TAR)), "a layer that cannot be read"),
        (lambda layout: layout.index(layout.manifest(layer(("../out", b"x")))), "which leads out of the image"),
        (lambda layout: layout.index(layout.manifest(layer(("hard", "=> none")))), "a layer that cannot be read"),
        (lambda layout: nested(layout, 4), "has indexes of indexes, 3 deep; that is refused"),
        (damaged, "is damaged; its digest is sha256:"),
        (missing, "or incomplete: it has no blobs/sha256/"),
        (linked, "leads through a symlink"),
    ],
)
def test_what_is_no_whole_image_is_refused_and_leaves_nothing(
    node: Any, layout: Layout, area: Path, prepare: Callable[[Layout], object], message: str
) -> None:
    prepare(layout)
    answer = node.mount(DRIVER, node.target("a"), {"path": "model"})
    assert message in answer["message"]
    assert (node.mounted, made(area)) == ([], [])


def test_nothing_of_a_layer_reaches_the_node_and_devices_are_left_out(node: Any, layout: Layout) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for kind, name in ((tarfile.CHRTYPE, "null"), (tarfile.BLKTYPE, "disk"), (tarfile.FIFOTYPE, "pipe")):
            info = tarfile.TarInfo(name)
            info.type, info.devmajor, info.devminor = kind, 1, 3
            archive.addfile(info)
    layout.index(layout.manifest(layer(("/absolute", b"inside")), packed.getvalue()))
    assert tree(mounted(node)) == {"absolute": "inside"}
    assert not Path("/absolute").exists()


def test_an_image_larger_than_its_limit_is_refused_by_what_it_unpacks_to(
    make: Callable[..., Any], layout: Layout
) -> None:
    layout.index(layout.manifest(layer(("zeros", bytes(3 * MIB)))))
    node = make(max_unpacked="2Mi")
    answer = node.mount(DRIVER, node.target("a"), {"path": "model"})
    assert "unpacks to 3Mi, and there is room for 2Mi" in answer["message"]
    assert node.mounted == []


def test_images_that_no_pod_uses_make_room_for_others(make: Callable[..., Any], layout: Layout, area: Path) -> None:
    entries = [layout.manifest(layer(("random", os.urandom(MIB)))) for _ in range(3)]
    layout.index(*entries)
    node = make(max_unpacked="2500Ki")
    held, later = node.target("held"), node.target("later")
    assert node.mount(DRIVER, held, {"path": "model", "digest": entries[0]["digest"]}) == {"status": "Success"}
    for entry in entries[1:]:
        assert node.mount(DRIVER, later, {"path": "model", "digest": entry["digest"]}) == {"status": "Success"}
        node.unmount(DRIVER, later)
    kept = {f"{entries[number]['digest'][7:]}.squashfs" for number in (0, 2)}
    assert set(made(area)) == kept
    assert (held / "random").stat().st_size == MIB


def test_images_have_their_limit_together_and_those_in_use_stay(
    make: Callable[..., Any], layout: Layout, area: Path
) -> None:
    entries = [layout.manifest(layer(("random", os.urandom(MIB)))) for _ in range(3)]
    layout.index(*entries)
    node = make(max_unpacked="2500Ki")
    for name, entry in zip("ab", entries, strict=False):
        node.mount(DRIVER, node.target(name), {"path": "model", "digest": entry["digest"]})
    before = made(area)
    answer = node.mount(DRIVER, node.target("c"), {"path": "model", "digest": entries[2]["digest"]})
    assert "unpacks to 1Mi, and there is room for" in answer["message"]
    assert made(area) == before
    node.unmount(DRIVER, node.target("a"))
    third = node.mount(DRIVER, node.target("c"), {"path": "model", "digest": entries[2]["digest"]})
    assert third == {"status": "Success"}


def test_an_image_that_no_pod_uses_goes_before_another_one_fills_the_disk(
    make: Callable[..., Any], layout: Layout, area: Path
) -> None:
    entries = [layout.manifest(layer(("random", os.urandom(2 * MIB)))) for _ in range(2)]
    layout.index(*entries)
    (area / "hosts" / "image").mkdir(parents=True)
    mount("tmpfs", str(area / "hosts" / "image"), "tmpfs", options=(f"size={67 * MIB}",))
    node = make()
    for entry in entries:
        answer = node.mount(DRIVER, node.target("a"), {"path": "model", "digest": entry["digest"]})
        assert answer == {"status": "Success"}
        node.unmount(DRIVER, node.target("a"))
    assert made(area) == [f"{entries[1]['digest'][7:]}.squashfs"]


def test_what_podman_has_saved_is_an_image(node: Any, area: Path, layout: Layout) -> None:
    need("mount", "podman", "unshare")
    shutil.rmtree(layout.root)
    (area / "content.tar").write_bytes(LOWER)
    with tempfile.TemporaryDirectory(prefix="npp", dir="/tmp") as short:  # podman takes no runroot above 50 bytes
        podman = f"podman --root {area}/storage --runroot {short} --storage-driver vfs"
        # Its locks in /dev/shm are the machine's: with new folders it frees those of every other podman.
        script = f"""
            mount -t tmpfs locks /dev/shm
            {podman} import {area}/content.tar localhost/model:1
            {podman} save --format oci-dir -o {layout.root} localhost/model:1
        """
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tree(mounted(node))["etc/kept"] == "kept"


# --- what a layer must not do to the daemon -------------------------------------------------------------------------


def with_header(size: int) -> bytes:
    """Return a layer whose first entry has a pax header of so many bytes, which compress to nothing."""
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf(tarfile.GNU_FORMAT) + b"0" * size


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a path of sixty thousand folders": (
        lambda: layer(("d/" * 60_000 + "f", b"x")),
        "with a path of 120001 characters",
    ),
    "a header of half a gigabyte": (lambda: with_header(512 * MIB), "needs more than 128Mi of memory to be read"),
    "a file of one megabyte with a thousand hard links": (
        lambda: layer(("f", b"x" * MIB), *((f"l{number}", "=> f") for number in range(1000))),
        "unpacks to",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_layer_is_refused_and_takes_none_of_the_daemon_s_memory(
    make: Callable[..., Any], layout: Layout, area: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Some seconds: the largest layer has half a gigabyte before it is compressed."""
    monkeypatch.setattr(merging, "MEMORY", 128 * MIB)
    build, said = HOSTILE[what]
    layout.index(layout.manifest(build()))
    node = make(max_unpacked="100Mi")
    before = peak()
    answer = node.mount(DRIVER, node.target("a"), {"path": "model"})
    assert answer["status"] == "Failure"
    assert said in answer["message"], answer
    assert peak() < before + 64 * MIB
    assert made(area) == []


def test_a_layer_that_takes_too_long_is_refused(node: Any, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SECONDS", 0)
    layout.index(layout.manifest(layer(("f", b"x"))))
    answer = node.mount(DRIVER, node.target("a"), {"path": "model"})
    assert "needs more than 0 s of CPU time to be read" in answer["message"]
