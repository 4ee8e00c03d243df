"""containerd and a CDI spec that the daemon wrote: an image without a word of NVIDIA finds the driver.

The driver's root is a folder whose libcuda is a real shared object; the image has a C library and a program that opens
libcuda by its name. Cards are simulated, their nodes are those of /dev/null.
"""

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need
from tests.real.consumers import Containerd, PrivateNode
from tests.real.consumers.containerd import write_archive

from nodeplug.contract.errors import PluginError
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.real]
IMAGE = "registry.local/test/plain:1"
LEADS_OUT = "registry.local/test/leads-out:1"
VERSION = "570.1.2"
KIND = "nodeplug.io/gpu"
SPEC = "/var/run/cdi/nodeplug-gpu-nodeplug.io-gpu.json"
LIBCUDA = "int cuDriverGetVersion(int *version) { *version = 12080; return 0; }"
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    int version;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) { puts(dlerror()); return 0; }
    int (*get)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    Dl_info info;
    if (get(&version) != 0 || dladdr((void *)get, &info) == 0) return 1;
    printf("%s %d\\n", info.dli_fname, version);
    return 0;
}
"""
PLUGINS = """
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
simulated = [{{ memory = "8GiB", count = 2 }}]
driver_root = "{folder}/driver"
dev_root = "{folder}/driver"
cdi_hook = "nodeplug"
[[plugins.gpu.config.resources]]
sharing = "exclusive"
resource = "nvidia.com/gpu"
access = {{ cdi = "field", visible_devices = "none" }}
"""


def compiled(text: str, path: Path, *options: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-x", "c", "-", "-o", str(path), *options], input=text, text=True, check=True)


def install_driver(root: Path) -> None:
    """Install libcuda where the linker of Debian does not look by itself, without a link to it, and two cards."""
    compiled(LIBCUDA, root / f"usr/lib64/libcuda.so.{VERSION}", "-shared", "-Wl,-soname,libcuda.so.1")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\necho smi\n")
    (root / "usr/bin/nvidia-smi").chmod(0o755)
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia1"):
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def write_image(folder: Path, name: str, etc: Path | None = None) -> Path:
    """Write an image with the C library, the program and busybox, and nothing that knows of NVIDIA.

    Args:
        folder: to write to.
        name: of the image.
        etc: where its /etc leads on the node, before the container has a root of its own.
    """
    compiled(PROGRAM, folder / "find", "-D_GNU_SOURCE")
    said = subprocess.run(["ldd", str(folder / "find")], capture_output=True, text=True, check=True).stdout
    needed = [word for word in said.split() if word.startswith("/")]
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as tar:
        for path in needed:
            tar.add(path, path.lstrip("/"))
        tar.add(folder / "find", "bin/find")
        for applet in ("busybox", "sh", "ls", "env"):
            tar.add("/bin/busybox", f"bin/{applet}")
        if etc is not None:
            entry = tarfile.TarInfo("etc")
            entry.type, entry.linkname = tarfile.SYMTYPE, f"/proc/1/root{etc}"
            tar.addfile(entry)
    write_archive(folder / "image.tar", layer.getvalue(), {name: ["/bin/find"]})
    return folder / "image.tar"


@dataclass(frozen=True)
class Lab:
    """A daemon with two cards, and a containerd."""

    daemon: ScratchNode
    containerd: Containerd
    node: PrivateNode

    @property
    def spec(self) -> dict[str, Any]:
        """The spec as the runtime reads it."""
        return dict(json.loads(self.node.run("cat", SPEC)))

    def run(self, *command: str, device: str | None = None, image: str = IMAGE) -> str:
        """Run a command in a container, with a CDI device perhaps; return what it printed."""
        devices = ["--device", f"{KIND}={device}"] if device is not None else []
        return self.containerd.ctr("run", "--rm", *devices, image, "test", *command)


@pytest.fixture(scope="module")
def lab(
    make_private_node: Callable[..., PrivateNode],
    consumer: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    need("cc")
    folder = tmp_path_factory.mktemp("cdi")
    install_driver(folder / "driver")
    programs = consumer("containerd")
    with make_private_node(folder / "n") as private:
        daemon = ScratchNode(private.folder, PLUGINS.format(folder=folder), beside=private.pid, fork=True)
        faults = daemon.paths.run / "plugins/gpu/simulated-faults.json"
        faults.parent.mkdir(parents=True, exist_ok=True)
        faults.write_text(json.dumps({"driver_version": VERSION}))
        (folder / "c").mkdir()
        containerd = Containerd(private, folder / "c", daemon.paths.cni_bin, daemon.paths.cni_conf, programs=programs)
        try:
            with daemon, containerd:
                containerd.ctr("images", "import", str(write_image(folder, IMAGE)))
                made = Lab(daemon, containerd, private)
                until(lambda: "libcuda" in private.run("sh", "-c", f"cat {SPEC} || true"))
                yield made
        finally:
            sys.stdout.write(daemon.log)  # shown when a test fails


def test_a_plain_image_finds_the_driver_by_a_cdi_name_alone(lab: Lab) -> None:
    card = lab.spec["devices"][0]["name"]
    assert "libcuda.so.1: cannot open shared object file" in lab.run("/bin/find")
    assert lab.run("/bin/find", device=card) == "/usr/lib64/libcuda.so.1 12080\n"
    assert lab.run("/usr/bin/nvidia-smi", device=card) == "smi\n"
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in lab.run("/bin/env", device=card)


def test_a_container_has_the_nodes_of_its_cards_and_no_others(lab: Lab) -> None:
    first, second, everything = [one["name"] for one in lab.spec["devices"]]
    assert everything == "all"
    for device, cards in ((first, {"nvidia0"}), (second, {"nvidia1"}), ("all", {"nvidia0", "nvidia1"})):
        listed = lab.run("/bin/ls", "/dev", device=device).split()
        assert {name for name in listed if name.startswith("nvidia")} == {"nvidiactl", *cards}


def test_a_container_whose_hook_fails_does_not_start_and_says_why(lab: Lab) -> None:
    ldconfig = "/sbin/ldconfig"
    lab.node.run("mount", "--bind", "/bin/false", ldconfig)
    try:
        with pytest.raises(PluginError, match="the libraries of the GPU driver cannot be set up: ldconfig in its root"):
            lab.run("/bin/find", device="all")
    finally:
        lab.node.run("umount", ldconfig)


def test_an_image_whose_etc_leads_to_the_node_has_nothing_written_there(lab: Lab, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    lab.containerd.ctr("images", "import", str(write_image(tmp_path, LEADS_OUT, outside)))
    with pytest.raises(PluginError, match="the libraries of the GPU driver cannot be set up"):
        lab.run("/bin/find", device="all", image=LEADS_OUT)
    assert list(outside.iterdir()) == []
