"""image through the FlexVolume front: real squashfs and erofs, loop devices and overlays."""

import hashlib
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.node.killing import every_step
from tests.programs import need

from nodeplug import InvalidRequest, TryAgain, mount, mounted_at, mounts, unmount
from nodeplug_volumes import digests
from nodeplug_volumes.image import Image, ImageConfig

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
DRIVER = "nodeplug/image"
KINDS = {"squashfs": ("mksquashfs", "-quiet", "-no-progress"), "erofs": ("mkfs.erofs",)}
MIB = 1 << 20


def make_image(kind: str, content: Path, image: Path) -> Path:
    tool, *arguments = KINDS[kind]
    need(tool)
    paths = [content, image] if kind == "squashfs" else [image, content]
    subprocess.run([tool, *map(str, paths), *arguments], check=True, capture_output=True)
    return image


def digest_of(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def images(area: Path) -> Path:
    """A root with one image of each kind, and a secret beside it."""
    content, root = area / "content", area / "images"
    (content / "layers").mkdir(parents=True)
    (content / "weights").write_text("weights")
    (content / "layers" / "one").write_text("one")
    root.mkdir()
    for kind in KINDS:
        make_image(kind, content, root / f"model.{kind}")
    (area / "secret.squashfs").write_bytes((root / "model.squashfs").read_bytes())
    return root


@pytest.fixture
def make_plugin(make_host: Any, images: Path) -> Any:
    def make(root: dict[str, Any] | None = None, **config: Any) -> Image:
        roots = {"main": {"path": str(images)} | (root or {})}
        plugin = Image(ImageConfig.model_validate({"roots": roots} | config), make_host("image"))
        plugin.start()
        return plugin

    return make


@pytest.fixture
def node(make_node: Any, make_plugin: Any) -> Any:
    return make_node(image=make_plugin(max_overlay="64Mi"))


def left(area: Path) -> list[Path]:
    """What layers have left in the plugin's folders."""
    return [*area.glob("hosts/image/*/layers/*")]


@pytest.mark.parametrize("kind", KINDS)
def test_pods_read_an_image_and_cannot_write_to_it(node: Any, kind: str) -> None:
    target = node.target("a")
    assert node.mount(DRIVER, target, {"path": f"model.{kind}"}) == {"status": "Success"}
    assert (target / "weights").read_text() == "weights"
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "weights").write_text("")
    found = mounted_at(str(target))
    assert found is not None
    assert {"ro", "nosuid", "nodev"} <= set(found.options)
    assert found.fs_type == kind


@pytest.mark.parametrize("kind", KINDS)
def test_all_pods_of_a_node_share_one_mount_and_the_last_one_ends_it(node: Any, loops: Any, kind: str) -> None:
    one, two = node.target("a"), node.target("b")
    for target in (one, two):
        node.mount(DRIVER, target, {"path": f"model.{kind}"})
    assert len({mount.device for mount in mounts() if mount.target.startswith(str(node.area))}) == 1
    node.unmount(DRIVER, one)
    assert (two / "weights").read_text() == "weights"
    node.unmount(DRIVER, two)
    assert (node.mounted, node.records, loops()) == ([], [], {})


def test_an_erofs_image_needs_no_loop_device(node: Any, loops: Any) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 12):
        pytest.skip("needs Linux 6.12")
    node.mount(DRIVER, node.target("a"), {"path": "model.erofs"})
    assert loops() == {}


def test_an_erofs_image_that_the_kernel_cannot_mount_as_a_file_has_a_loop_device(
    node: Any, images: Path, loops: Any
) -> None:
    """As on each Linux before 6.12; on a later one, where the file itself is on erofs."""
    inner = images / "disk"
    inner.mkdir()
    mount(str(make_image("erofs", images, images.parent / "outer")), str(inner), "erofs", read_only=True)
    target = node.target("a")
    assert node.mount(DRIVER, target, {"path": "disk/model.erofs"}) == {"status": "Success"}
    assert (target / "weights").read_text() == "weights"
    assert list(loops().values()) == [str(inner / "model.erofs")]
    node.unmount(DRIVER, target)
    assert loops() == {}
    unmount(str(inner))


# --- digests


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_with_the_digest_that_is_asked_for_is_mounted(node: Any, images: Path, kind: str) -> None:
    target, image = node.target("a"), images / f"model.{kind}"
    assert node.mount(DRIVER, target, {"path": image.name, "digest": digest_of(image)}) == {"status": "Success"}
    assert (target / "weights").read_text() == "weights"


def test_an_image_with_another_digest_is_never_mounted(node: Any, images: Path) -> None:
    other = f"sha256:{'0' * 64}"
    answer = node.mount(DRIVER, node.target("a"), {"path": "model.squashfs", "digest": other})
    assert f"has the digest {digest_of(images / 'model.squashfs')}, and {other} is asked for" in answer["message"]
    assert node.mounted == []


def test_the_digest_of_an_unchanged_file_is_computed_once(
    node: Any, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    compute = digests.Digests._read

    def counted(self: Any, descriptor: int, name: str) -> str:
        read.append(name)
        return compute(self, descriptor, name)

    monkeypatch.setattr(digests.Digests, "_read", counted)
    target, image = node.target("a"), images / "model.squashfs"
    for _ in range(2):
        node.mount(DRIVER, target, {"path": image.name, "digest": digest_of(image)})
        node.unmount(DRIVER, target)
    assert read == ["main/model.squashfs"]
    status = image.stat()
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    answer = node.mount(DRIVER, target, {"path": image.name, "digest": "sha256:" + "1" * 64})
    assert digest_of(image) in answer["message"]
    assert len(read) == 2


def test_a_file_that_is_written_meanwhile_has_no_digest_yet(
    tmp_path: Path, make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "image"
    file.write_bytes(bytes(MIB))
    compute = digests.Digests._read

    def while_written(self: Any, descriptor: int, name: str) -> str:
        with file.open("ab") as stream:
            stream.write(b"more")
        return compute(self, descriptor, name)

    monkeypatch.setattr(digests.Digests, "_read", while_written)
    with file.open("rb") as stream, pytest.raises(TryAgain, match="was written to while its digest was computed"):
        digests.Digests(tmp_path / "notes", make_host("image").log).check(stream.fileno(), "x", digest_of(file))


def test_a_damaged_note_is_no_digest(tmp_path: Path, make_host: Any) -> None:
    file = tmp_path / "image"
    file.write_bytes(b"image")
    checked = digests.Digests(tmp_path / "notes", make_host("image").log)
    with file.open("rb") as stream:
        checked.check(stream.fileno(), "x", digest_of(file))
        for note in (tmp_path / "notes").iterdir():
            note.write_text("{")
        checked.check(stream.fileno(), "x", digest_of(file))
        with pytest.raises(InvalidRequest, match="the file was replaced or damaged"):
            checked.check(stream.fileno(), "x", f"sha256:{'0' * 64}")


@pytest.mark.whole
def test_the_log_says_that_a_large_image_is_read(
    node: Any, images: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = images / "model.erofs"
    os.truncate(image, 256 * MIB)
    monkeypatch.setattr(digests, "_INTERVAL", 0.0)
    with caplog.at_level(logging.INFO):
        node.mount(DRIVER, node.target("a"), {"path": image.name, "digest": digest_of(image)})
    assert "image main/model.erofs is checked by its digest: 256Mi are read, once" in caplog.messages
    assert "image main/model.erofs: 128Mi of 256Mi are checked" in caplog.messages


def test_a_root_may_have_only_images_by_digest(make_node: Any, make_plugin: Any, images: Path) -> None:
    node = make_node(image=make_plugin({"require_digest": True}))
    plain = {"path": "model.squashfs"}
    assert "set the option digest" in node.mount(DRIVER, node.target("a"), plain)["message"]
    pinned = plain | {"digest": digest_of(images / "model.squashfs")}
    assert node.mount(DRIVER, node.target("a"), pinned) == {"status": "Success"}


# --- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option path is missing"),
        ({"path": "../secret.squashfs"}, "must be relative to its root, without '..'"),
        ({"path": "/etc/passwd"}, "must be relative to its root"),
        ({"path": "link"}, "leads through a symlink"),
        ({"path": "away/secret.squashfs"}, "leads through a symlink"),
        ({"path": "pipe"}, "is not a regular file"),
        ({"path": "folder"}, "is no OCI image layout, or incomplete: it has no index.json"),
        ({"path": "none.squashfs"}, "there is no such file below its root on this node"),
        ({"path": "text"}, "holds neither squashfs nor erofs"),
        ({"path": "empty"}, "holds neither squashfs nor erofs"),
        ({"path": "model.squashfs", "root": "other"}, "option root is 'other'; this node allows: main"),
        ({"path": "model.squashfs", "digest": "md5:1"}, "it must be sha256: and 64 hexadecimal digits"),
        ({"path": "model.squashfs", "mode": "0"}, "image has no option 'mode'"),
        ({"path": "model.squashfs", "overlay": "65Mi"}, "this node allows from 4Mi to 64Mi"),
        ({"path": "model.squashfs", "overlay": "1"}, "this node allows from 4Mi to 64Mi"),
        ({"path": "cut"}, "cannot mount"),
    ],
)
def test_what_is_no_image_below_a_root_is_refused_and_leaves_nothing(
    node: Any, images: Path, loops: Any, options: dict[str, str], message: str
) -> None:
    (images / "link").symlink_to(images / "model.squashfs")
    (images / "away").symlink_to(images.parent)
    (images / "folder").mkdir()
    (images / "text").write_text("x" * 5000)
    (images / "empty").touch()
    (images / "cut").write_bytes((images / "model.squashfs").read_bytes()[:200])
    os.mkfifo(images / "pipe")
    answer = node.mount(DRIVER, node.target("a"), options)
    assert answer["status"] == "Failure"
    assert message in answer["message"]
    assert (node.mounted, loops()) == ([], {})


# --- writable layers


def layered(node: Any, name: str, size: str = "8Mi", **more: str) -> Path:
    target: Path = node.target(name)
    options = {"path": "model.squashfs", "overlay": size} | more
    assert node.mount(DRIVER, target, options) == {"status": "Success"}
    return target


@pytest.mark.programs("mkfs.ext4")
def test_each_pod_writes_to_a_layer_of_its_own(node: Any, images: Path) -> None:
    before = digest_of(images / "model.squashfs")
    one, two = layered(node, "a"), layered(node, "b")
    (one / "weights").write_text("mine")
    (one / "layers" / "one").unlink()
    assert (two / "weights").read_text() == "weights"
    assert (two / "layers" / "one").read_text() == "one"
    assert digest_of(images / "model.squashfs") == before


@pytest.mark.programs("mkfs.ext4")
def test_a_pod_with_a_layer_and_one_without_share_the_image(node: Any) -> None:
    layer, plain = layered(node, "a"), node.target("b")
    node.mount(DRIVER, plain, {"path": "model.squashfs"})
    (layer / "weights").write_text("mine")
    assert (plain / "weights").read_text() == "weights"
    assert len([one for one in mounts() if one.target.startswith(str(node.area / "staging"))]) == 1


@pytest.mark.programs("mkfs.ext4")
def test_a_layer_is_as_large_as_asked_and_no_larger(node: Any) -> None:
    target = layered(node, "a", "8Mi")
    with pytest.raises(OSError, match="No space left on device"):
        (target / "big").write_bytes(bytes(8 * MIB))


@pytest.mark.programs("mkfs.ext4")
def test_an_unmounted_layer_leaves_nothing(node: Any, area: Path, loops: Any) -> None:
    target = layered(node, "a")
    (target / "x").write_text("x")
    assert left(area) == []
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert (node.mounted, loops(), left(area)) == ([], {}, [])
    assert not (layered(node, "a") / "x").exists()


@pytest.mark.programs("mkfs.ext4")
def test_the_space_of_a_layer_is_reserved_and_the_disk_has_it_again_after_the_pod(
    area: Path, make_node: Any, make_plugin: Any, make_host: Any
) -> None:
    state = make_host("image").state_dir
    mount("tmpfs", str(state), "tmpfs", options=("size=24M",))
    node = make_node(image=make_plugin(max_overlay="64Mi"))
    one = layered(node, "a", "16Mi")
    options = {"path": "model.squashfs", "overlay": "16Mi"}
    answer = node.mount(DRIVER, node.target("b"), options)
    assert "no room for a writable layer of 16Mi" in answer["message"]
    assert "free of 24Mi" in answer["message"]
    node.unmount(DRIVER, one)
    assert node.mount(DRIVER, node.target("b"), options) == {"status": "Success"}


@pytest.mark.programs("mkfs.ext4")
def test_the_group_of_a_pod_may_write_to_its_layer(node: Any) -> None:
    target = layered(node, "a", **{"kubernetes.io/mounterArgs.FsGroup": "2000"})
    status = target.stat()
    assert (status.st_gid, status.st_mode & 0o2770) == (2000, 0o2770)


@pytest.mark.programs("mkfs.ext4")
def test_a_layer_looks_like_the_image_below_it(node: Any, area: Path) -> None:
    (area / "content").chmod(0o711)
    os.chown(area / "content", 1000, 1001)
    make_image("squashfs", area / "content", area / "images" / "owned.squashfs")
    target = layered(node, "a", path="owned.squashfs")
    status = target.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1000, 1001, 0o711)


def test_a_read_only_pod_has_no_layer(node: Any) -> None:
    target = layered(node, "a", **{"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "x").write_text("x")


def test_a_node_allows_no_layers_unless_its_administrator_does(make_node: Any, make_plugin: Any) -> None:
    node = make_node(image=make_plugin())
    answer = node.mount(DRIVER, node.target("a"), {"path": "model.squashfs", "overlay": "8Mi"})
    assert "this node allows no writable layers; see max_overlay" in answer["message"]


@pytest.mark.programs("mkfs.ext4")
def test_a_daemon_that_is_killed_at_any_step_of_a_layer_leaves_nothing_to_the_next_one(
    area: Path, images: Path, make_plugin: Any, loops: Any
) -> None:
    target = area / "killed"

    def assert_nothing_is_left() -> None:
        make_plugin(max_overlay="64Mi")
        unmount(str(target))
        unmount(str(area / "killed-stage"))
        assert (left(area), loops()) == ([], {})
        target.rmdir()

    words = [str(area), str(images), str(target)]
    for _ in every_step("tests.node.volumes.killed_layer", words, least=5, prepare=target.mkdir):
        assert_nothing_is_left()
    assert_nothing_is_left()  # nor after the one that was not killed
