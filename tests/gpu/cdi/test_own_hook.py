"""Our own createContainer hook, executed as a runtime does: the text of the spec, a state on stdin, a bundle."""

import ast
import json
import os
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug_gpu.cdi.hooks import SOURCE

pytestmark = pytest.mark.programs("mount", "unshare")
LIBRARIES = "/usr/lib/x86_64-linux-gnu/nvidia"
FILE = "libcuda.so.570.1.2"
ARGUMENTS = ["--link", f"{FILE}::{LIBRARIES}/libcuda.so.1", "--link", f"libcuda.so.1::{LIBRARIES}/libcuda.so"]
ARGUMENTS += ["--folder", LIBRARIES]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared object with the driver's SONAME."""
    need("cc")
    file = tmp_path_factory.mktemp("library") / FILE
    command = ["cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", str(file)]
    subprocess.run(command, input=b"int cuInit(unsigned flags) { return (int)flags; }", check=True)
    return file.read_bytes()


class Container:
    """A bundle whose container has the driver's library, and a folder of the node beside it."""

    def __init__(self, folder: Path, library: bytes) -> None:
        self.bundle, self.root, self.outside = folder / "bundle", folder / "bundle/rootfs", folder / "outside"
        (self.root / "etc").mkdir(parents=True)
        (self.root / "proc").mkdir()
        (self.root / LIBRARIES[1:]).mkdir(parents=True)
        (self.root / LIBRARIES[1:] / FILE).write_bytes(library)
        self.outside.mkdir()
        (self.bundle / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}}))

    def hook(
        self, arguments: Sequence[str] = ARGUMENTS, state: str | None = None, before: str = ":", source: str = SOURCE
    ) -> str:
        """Run it where a command has prepared a mount namespace; return what it says of a failure."""
        told = json.dumps({"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": str(self.bundle)})
        done = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "sh", "-c", f'{before} && "$@"', "sh"),
                *("/usr/bin/python3", "-IS", "-c", source, *arguments),
            ],
            input=told if state is None else state,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == (not done.stderr), done
        return done.stderr

    def cached(self) -> dict[str, str]:
        """Return what the linker of the container finds by its cache."""
        command = ["/sbin/ldconfig", "-p", "-C", str(self.root / "etc/ld.so.cache")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
        pairs = [line.strip().split(" => ") for line in said if " => " in line]
        return {name.split(" ")[0]: path for name, path in pairs}


@pytest.fixture
def container(tmp_path: Path, library: bytes) -> Container:
    return Container(tmp_path, library)


@pytest.mark.node
def test_the_linker_of_a_plain_container_finds_the_driver(container: Container) -> None:
    for _ in range(2):  # a container that starts again has what the first start made
        assert container.hook() == ""
        assert container.cached()["libcuda.so.1"] == f"{LIBRARIES}/libcuda.so.1"
        folder = container.root / LIBRARIES[1:]
        assert (folder / "libcuda.so").readlink() == Path("libcuda.so.1")
        assert (folder / "libcuda.so.1").readlink() == Path(FILE)
    assert sorted(path.name for path in folder.iterdir()) == ["libcuda.so", "libcuda.so.1", FILE]
    written = {path.name: path.read_text() for path in (container.root / "etc/ld.so.conf.d").iterdir()}
    assert written == {"00-nodeplug-gpu.conf": f"{LIBRARIES}\n"}
    assert (container.root / "etc/ld.so.conf").read_text() == "include /etc/ld.so.conf.d/*.conf\n"


@pytest.mark.node
def test_a_file_in_the_place_of_a_link_is_replaced_and_the_images_own_list_of_folders_stays(
    container: Container,
) -> None:
    (container.root / LIBRARIES[1:] / "libcuda.so.1").write_text("of the image")
    (container.root / "etc/ld.so.conf").write_text("/of/the/image\n")
    assert container.hook() == ""
    assert (container.root / LIBRARIES[1:] / "libcuda.so.1").readlink() == Path(FILE)
    assert (container.root / "etc/ld.so.conf").read_text() == "/of/the/image\n"
    assert "libcuda.so.1" in container.cached()


def _upwards(container: Container) -> str:
    return f"../../../../../../../../../..{container.outside}"


def _absolute(container: Container) -> str:
    return str(container.outside)


def _through_proc(container: Container) -> str:
    return f"/proc/1/root{container.outside}"


def _through_another_proc(container: Container) -> str:
    return f"/mnt/1/cwd{container.outside}"


@pytest.mark.node
@pytest.mark.parametrize("way", [_upwards, _absolute, _through_proc, _through_another_proc])
@pytest.mark.parametrize("place", ["etc", "etc/ld.so.conf.d", LIBRARIES[1:]])
def test_nothing_of_the_node_is_written_though_a_container_has_links_that_lead_out(
    container: Container, way: Callable[[Container], str], place: str
) -> None:
    path = container.root / place
    (container.root / "mnt").mkdir()
    if path.exists():
        path.rename(container.root / "moved")
    path.symlink_to(way(container))
    container.hook(
        before=f"cd / && mount -t proc proc {container.root}/proc && mount -t proc proc {container.root}/mnt"
    )
    assert list(container.outside.iterdir()) == []


@pytest.mark.parametrize("state", ["", "{}", "[]", '{"bundle": "/nowhere"}', '{"bundle": 5}'])
@pytest.mark.node
def test_a_state_that_says_nothing_is_told(container: Container, state: str) -> None:
    said = container.hook(state=state)
    assert said.startswith("nodeplug's CDI hook: the libraries of the GPU driver cannot be set up: ")


@pytest.mark.node
def test_the_root_of_the_node_is_refused(container: Container) -> None:
    (container.bundle / "config.json").write_text(json.dumps({"root": {"path": "/"}}))
    assert "the container's root is the node's" in container.hook(["--folder", "/nowhere"])


@pytest.mark.node
def test_a_failure_of_ldconfig_is_told_with_what_it_said(container: Container) -> None:
    (container.root / "etc/ld.so.cache~").mkdir()
    said = container.hook()
    assert "ldconfig in its root failed with 1" in said
    assert "ld.so.cache~" in said


@pytest.mark.node
def test_links_in_a_circle_end(container: Container) -> None:
    (container.root / "etc/ld.so.conf.d").symlink_to("/etc/ld.so.conf.d")
    assert "/etc/ld.so.conf.d has too many links" in container.hook()


@pytest.mark.node
def test_an_image_whose_list_of_folders_is_a_fifo_ends_with_a_sentence(container: Container) -> None:
    """A second: the hook waits for it."""
    folder = container.root / "etc/ld.so.conf.d"
    folder.mkdir()
    os.mkfifo(folder / "some.conf")
    source = SOURCE.replace("_PATIENCE = 20", "_PATIENCE = 1")
    assert source != SOURCE
    assert "ldconfig in its root did not end within 1 s: a file below /etc/ld.so.conf.d may be no" in container.hook(
        source=source
    )


@pytest.mark.node
def test_an_image_whose_list_of_folders_never_ends_takes_little_memory(container: Container) -> None:
    folder = container.root / "etc/ld.so.conf.d"
    folder.mkdir()
    with (folder / "some.conf").open("wb") as file:
        file.truncate(8 << 30)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert container.hook() == ""
    assert "libcuda.so.1" in container.cached()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < before + (512 << 10)


def test_it_is_short_enough_for_an_argument_and_a_python_of_2018_reads_it() -> None:
    ast.parse(SOURCE, feature_version=(3, 7))
    assert len(SOURCE) < os.sysconf("SC_PAGE_SIZE") * 16  # an argument has 32 pages at most
