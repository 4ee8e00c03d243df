"""What a container gets besides its cards: the files of the running driver, and the hooks that let it find them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.gpu.cdi.specs import CARD, Specs

from nodeplug_gpu.access import GpuDevice, NodePaths, grant
from nodeplug_gpu.cdi.document import LIBRARIES, specification
from nodeplug_gpu.config import Access


@pytest.mark.parametrize(
    ("kind", "dev", "version"),
    [
        ("nodeplug.io/gpu", Path("/dev"), "0.3.0"),
        ("nodeplug.io/gpu", Path("/elsewhere"), "0.5.0"),
        ("nodeplug.io/gpu.small", Path("/dev"), "0.6.0"),
    ],
)
def test_the_version_is_the_least_that_has_what_the_spec_uses(kind: str, dev: Path, version: str) -> None:
    node = {"path": "/dev/nvidia0", "permissions": "rw"} | ({"hostPath": f"{dev}/nvidia0"} if dev.name != "dev" else {})
    devices = [{"name": "GPU-1", "containerEdits": {"deviceNodes": [node]}}]
    assert specification(kind, devices, {})["cdiVersion"] == version


def install(root: Path, version: str) -> Path:
    """Install a driver as Debian's packages do, except for what the files contain; return the folder of libraries."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    (folder / "vdpau").mkdir(parents=True, exist_ok=True)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-allocator", "vdpau/libvdpau_nvidia"):
        (folder / f"{name}.so.{version}").write_bytes(b"\x7fELF\x02")
    for name in ("libcuda", "libnvidia-ml"):
        link = folder / f"{name}.so.1"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.so.{version}")
    (folder / "libcudart.so.12").touch()
    (folder / "libnvidia-egl-gbm.so.1.1.2").touch()
    for name in (
        f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        "usr/bin/nvidia-smi",
        "usr/bin/nvidia-cuda-mps-server",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "etc/vulkan/icd.d/nvidia_icd.json",
        f"usr/lib/libcuda.so.{version}",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"\x7fELF\x01")  # the last one is for programs of 32 bits
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("usr/lib/x86_64-linux-gnu")
    return folder


@contextmanager
def listening(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))
        yield


def test_every_file_of_the_running_driver_is_mounted_where_it_is_below_the_drivers_root(
    short_path: Path, paths: NodePaths
) -> None:
    root = short_path / "driver"
    install(root, "570.1.2")
    with listening(root / "run/nvidia-persistenced/socket"):
        mounts = Specs(short_path, paths).edits(CARD)["mounts"]
    inside = {mount["containerPath"]: mount for mount in mounts if not mount["containerPath"].startswith(LIBRARIES)}
    libraries = "/usr/lib/x86_64-linux-gnu"
    assert sorted(inside) == [
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/lib/firmware/nvidia/570.1.2/gsp_ga10x.bin",
        "/run/nvidia-persistenced/socket",
        "/usr/bin/nvidia-cuda-mps-server",
        "/usr/bin/nvidia-smi",
        f"{libraries}/libcuda.so.570.1.2",
        f"{libraries}/libnvidia-allocator.so.570.1.2",
        f"{libraries}/libnvidia-egl-gbm.so.1.1.2",
        f"{libraries}/libnvidia-ml.so.570.1.2",
        f"{libraries}/vdpau/libvdpau_nvidia.so.570.1.2",
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    ]
    for path, mount in inside.items():
        assert mount["hostPath"] == f"{root}{path}"
        assert ("ro" in mount["options"]) != path.endswith("socket")
        assert {"nosuid", "nodev", "rbind", "rprivate"} <= set(mount["options"])


def test_libraries_of_another_version_are_never_taken_and_the_spec_waits_for_those_of_the_running_driver(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs, root = Specs(tmp_path, paths), tmp_path / "driver"
    folder = install(root, "570.1.2")
    before = specs.edits(CARD)
    for path in folder.rglob("*570.1.2"):
        path.unlink()
    install(root, "580.3")
    assert specs.edits(CARD) == before
    assert "the running driver has version 570.1.2, and below " in specs.why(CARD)
    assert "is libcuda.so.580.3 alone: load the kernel driver that was installed" in specs.why(CARD)
    after = [mount["containerPath"] for mount in specs.edits(CARD, version="580.3")["mounts"]]
    assert specs.why(CARD) == ""
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.580.3" in after
    assert not [path for path in after if "570" in path]


LINKS = [
    *("--link", "libcuda.so.570.1.2::/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    *("--link", "libnvidia-ml.so.570.1.2::/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
    *("--link", "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"),
    *("--link", "libnvidia-allocator.so.570.1.2::/usr/lib/x86_64-linux-gnu/libnvidia-allocator.so.1"),
    *("--link", "../libnvidia-allocator.so.1::/usr/lib/x86_64-linux-gnu/gbm/nvidia-drm_gbm.so"),
]
FOLDERS = ["--folder", "/usr/lib/x86_64-linux-gnu", "--folder", "/usr/lib/x86_64-linux-gnu/vdpau"]


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "first"), [("nvidia-cdi-hook", ["nvidia-cdi-hook"]), ("nvidia-ctk", ["nvidia-ctk", "hook"])]
)
@pytest.mark.parametrize("configured", [False, True])
def test_nvidias_hooks_make_the_linker_find_the_libraries_where_the_node_has_them(
    tmp_path: Path, paths: NodePaths, name: str, first: list[str], configured: bool
) -> None:
    install(tmp_path / "driver", "570.1.2")
    path = program(tmp_path / ("opt" if configured else "driver/usr/bin") / name)
    edits = Specs(tmp_path, paths, hook=str(path) if configured else "auto").edits(CARD)
    assert [(hook["hookName"], hook["path"]) for hook in edits["hooks"]] == [("createContainer", str(path))] * 2
    assert [hook["args"] for hook in edits["hooks"]] == [
        [*first, "create-symlinks", *LINKS],
        [*first, "update-ldcache", *FOLDERS],
    ]
    assert not [mount for mount in edits["mounts"] if mount["containerPath"].startswith(LIBRARIES)]


def test_the_hook_of_nodeplug_is_in_the_spec_itself_where_the_node_has_no_other(
    tmp_path: Path, paths: NodePaths
) -> None:
    install(tmp_path / "driver", "570.1.2")
    (hook,) = Specs(tmp_path, paths, hook="auto").edits(CARD)["hooks"]
    assert (hook["path"], hook["args"][:3]) == ("/usr/bin/python3", ["python3", "-IS", "-c"])
    assert hook["args"][4:] == [*LINKS, *FOLDERS]
    assert hook["env"] == ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]


def test_a_configured_hook_that_is_not_there_makes_no_card_allocatable(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths, hook=str(tmp_path / "nvidia-cdi-hook"))
    specs.reconcile(CARD)
    assert f"{tmp_path}/nvidia-cdi-hook is no program; install it" in specs.why(CARD)
    program(tmp_path / "nvidia-cdi-hook")
    specs.reconcile(CARD)
    assert specs.why(CARD) == ""


def test_a_spec_has_the_nodes_own_paths_where_nodeplug_sees_them_elsewhere(tmp_path: Path, paths: NodePaths) -> None:
    root = tmp_path / "driver"
    install(root, "570.1.2")
    program(root / "usr/local/nvidia/toolkit/nvidia-cdi-hook")
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia3"):
        (root / "dev" / name).touch()
    specs = Specs(tmp_path, replace(paths, node=root, dev=root / "dev"), hook="auto")
    edits = specs.edits(CARD)
    assert {mount["hostPath"] == mount["containerPath"] for mount in edits["mounts"]} == {True}
    assert {hook["path"] for hook in edits["hooks"]} == {"/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
    document = specs.reconcile(CARD)
    assert document is not None
    nodes = document["devices"][0]["containerEdits"]["deviceNodes"]
    assert nodes == [{"path": f"/dev/{name}", "permissions": "rw"} for name in ("nvidiactl", "nvidia3")]
    assert {one.host_path for one in grant(Access(device_nodes=True), [GpuDevice(CARD)], specs.specs.paths).nodes} == {
        "/dev/nvidiactl",
        "/dev/nvidia3",
    }


def test_no_program_of_an_image_is_taken_for_one_of_the_node(tmp_path: Path, paths: NodePaths) -> None:
    install(tmp_path / "driver", "570.1.2")
    edits = Specs(tmp_path, replace(paths, programs=False), hook="auto").edits(CARD)
    assert "hooks" not in edits
    assert f"{LIBRARIES}/libcuda.so.1" in [mount["containerPath"] for mount in edits["mounts"]]


def test_nvidias_runtime_is_told_that_there_is_nothing_for_it_to_do_where_no_variable_names_cards(
    tmp_path: Path, paths: NodePaths
) -> None:
    assert "env" not in Specs(tmp_path, paths).edits(CARD)
    assert Specs(tmp_path, paths, visible_devices="none").edits(CARD)["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
