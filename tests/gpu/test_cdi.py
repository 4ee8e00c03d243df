"""CDI specs: what they say of the cards, and that no container gets a name that the runtime does not know."""

import errno
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeplug import NotReady
from nodeplug.testing import host
from nodeplug_gpu.access import GpuDevice, NodePaths, grant
from nodeplug_gpu.cards import Card, MigInstance, Snapshot, Uuid
from nodeplug_gpu.cdi.document import LIBRARIES, specification
from nodeplug_gpu.cdi.specs import PENDING, CdiSpecs
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.pool import Pool, PoolMember

INSTANCE = MigInstance(Uuid("MIG-1"), "1g.10gb", 10 << 30, 7, 0)
CARD = Card(Uuid("GPU-1"), 0, 3, "X", 80 << 30)
SPLIT = Card(Uuid("GPU-2"), 1, 4, "X", 80 << 30, mig=True, instances=(INSTANCE,))


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """A folder with files for nodes: only their names matter here."""
    dev, caps = tmp_path / "dev", tmp_path / "capabilities"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in (
        "nvidiactl",
        "nvidia-uvm",
        "nvidia3",
        "nvidia4",
        "nvidia-caps/nvidia-cap30",
        "nvidia-caps/nvidia-cap31",
    ):
        (dev / name).touch()
    for folder, minor in (("gi7", 30), ("gi7/ci0", 31)):
        place = caps / "gpu4" / "mig" / folder
        place.mkdir(parents=True)
        (place / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    return NodePaths(dev, caps, tmp_path, cdi=(tmp_path / "etc/cdi", tmp_path / "run/cdi"))


class Specs:
    def __init__(self, folder: Path, paths: NodePaths, section: str = "gpu", hook: str = "none", **access: Any) -> None:
        self.folder = folder / "cdi"
        values = {"cdi": "field", "cdi_folder": str(self.folder), **access}
        config = GpuConfig.model_validate(
            {
                "driver_root": str(folder / "driver"),
                "cdi_hook": hook,
                "resources": [
                    {"resource": "example.com/gpu", "sharing": "exclusive", "access": values},
                    {"resource": "example.com/mig", "sharing": "mig", "access": values},
                ],
            }
        )
        self.told: list[str] = []
        self.specs = CdiSpecs(config, paths, host(folder, plugin=section), lambda: self.told.append("changed"))
        self.entries = {entry.resource: entry for entry in config.resources}

    def inventory(self, *cards: Card, state: Any = "running") -> Inventory:
        pools = {
            "example.com/gpu": Pool(tuple(PoolMember(card) for card in cards if not card.mig)),
            "example.com/mig": Pool(tuple(PoolMember(card) for card in cards if card.mig)),
        }
        return Inventory(Snapshot(state, cards=cards), pools)

    def entry(self, card: Card) -> Any:
        return self.entries["example.com/mig" if card.mig else "example.com/gpu"]

    def why(self, card: Card) -> str:
        return self.specs.not_ready_reason(self.entry(card), card.uuid)

    def refusal(self, card: Card) -> str:
        """Ask for a card, and return why it is refused."""
        entry = self.entry(card)
        try:
            self.specs.require(entry, grant(entry.access, [GpuDevice(card)], self.specs.paths))
        except NotReady as error:
            return error.message
        return ""

    def reconcile(self, *cards: Card, state: Any = "running") -> dict[str, Any] | None:
        self.specs.reconcile(self.inventory(*cards, state=state))
        found = list(self.folder.iterdir()) if self.folder.exists() else []
        return json.loads(found[0].read_text()) if found else None

    def edits(self, *cards: Card, version: str = "570.1.2") -> dict[str, Any]:
        """Return what every container gets by the spec with a driver of some version."""
        inventory = self.inventory(*cards)
        self.specs.reconcile(replace(inventory, snapshot=replace(inventory.snapshot, driver_version=version)))
        (path,) = self.folder.iterdir()
        return dict(json.loads(path.read_text())["containerEdits"])


def test_every_card_and_instance_that_is_advertised_is_a_device_of_the_spec(tmp_path: Path, paths: NodePaths) -> None:
    document = Specs(tmp_path, paths).reconcile(CARD, SPLIT)
    assert document is not None
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "nodeplug.io/gpu")
    assert [device["name"] for device in document["devices"]] == ["GPU-1", "GPU-2", "MIG-1", "all"]
    assert {"path": "/dev/nvidia3", "hostPath": str(paths.dev / "nvidia3"), "permissions": "rw"} in document["devices"][
        0
    ]["containerEdits"]["deviceNodes"]


def test_the_drivers_libraries_are_mounted_by_their_sonames(tmp_path: Path, paths: NodePaths) -> None:
    folder = tmp_path / "driver/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.535.1", "libcudart.so.12", "libnvidia-ml.so.1"):
        (folder / name).touch()
    document = Specs(tmp_path, paths).reconcile(CARD)
    assert document is not None
    places = [mount["containerPath"] for mount in document["containerEdits"]["mounts"]]
    assert places == [f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.1"]


def test_all_devices_of_a_spec_are_one_device_too(tmp_path: Path, paths: NodePaths) -> None:
    document = Specs(tmp_path, paths).reconcile(CARD, SPLIT)
    assert document is not None
    nodes = [node["path"] for node in document["devices"][-1]["containerEdits"]["deviceNodes"]]
    caps = ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia4", *caps]


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


def test_nvidias_runtime_is_told_that_there_is_nothing_for_it_to_do_where_no_variable_names_cards(
    tmp_path: Path, paths: NodePaths
) -> None:
    assert "env" not in Specs(tmp_path, paths).edits(CARD)
    assert Specs(tmp_path, paths, visible_devices="none").edits(CARD)["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_the_spec_follows_a_card_that_comes(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    document = specs.reconcile(CARD, SPLIT)
    assert document is not None
    assert len(document["devices"]) == 4


def test_a_spec_that_a_section_of_another_name_left_goes_for_it_describes_the_same_card(
    tmp_path: Path, paths: NodePaths
) -> None:
    Specs(tmp_path, paths, "former").reconcile(CARD)
    other_kind = Specs(tmp_path, paths, "former", cdi_kind="example.com/gpu")
    other_kind.reconcile(CARD)
    specs = Specs(tmp_path, paths)
    (specs.folder / "nodeplug-broken.json").write_text("{")
    specs.reconcile(CARD)
    left = {path.name for path in specs.folder.iterdir()}
    assert left == {
        "nodeplug-gpu-nodeplug.io-gpu.json",
        "nodeplug-former-example.com-gpu.json",
        "nodeplug-broken.json",
    }


def test_a_spec_of_other_cards_stays_for_containers_that_start_again(tmp_path: Path, paths: NodePaths) -> None:
    Specs(tmp_path, paths, "former").reconcile(SPLIT)
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    devices = [json.loads(path.read_text())["devices"] for path in sorted(specs.folder.iterdir())]
    assert [[one["name"] for one in some] for some in devices] == [["GPU-2", "MIG-1"], ["GPU-1", "all"]]


def test_a_spec_that_somebody_removed_is_written_again(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    next(specs.folder.iterdir()).unlink()
    assert specs.reconcile(CARD) is not None


def test_an_equal_spec_is_not_written_again(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    before = next(specs.folder.iterdir()).stat().st_ino
    specs.reconcile(CARD)
    assert next(specs.folder.iterdir()).stat().st_ino == before


def test_the_spec_stays_while_the_driver_is_away(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    before = specs.reconcile(CARD)
    assert specs.reconcile(state="failed") == before


def test_no_spec_is_written_where_another_writes_it(tmp_path: Path, paths: NodePaths) -> None:
    assert Specs(tmp_path, paths, cdi_write=False).reconcile(CARD) is None


def test_a_card_whose_node_is_missing_is_left_out_and_not_allocatable(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    (paths.dev / "nvidia4").unlink()
    document = specs.reconcile(CARD, SPLIT)
    assert document is not None
    assert [device["name"] for device in document["devices"]] == ["GPU-1", "all"]
    assert specs.why(CARD) == ""
    assert f"{paths.dev}/nvidia4 does not exist" in specs.why(SPLIT)
    assert "MIG-1" in specs.specs.fault


def test_no_card_is_allocatable_before_its_spec_is_written(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    assert specs.why(CARD) == PENDING
    specs.reconcile(CARD)
    assert specs.why(CARD) == ""
    assert specs.why(SPLIT) == PENDING


def test_a_card_whose_spec_cannot_be_written_is_not_allocatable_with_the_reason(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths)
    specs.folder.parent.mkdir(parents=True, exist_ok=True)
    specs.folder.touch()
    specs.specs.reconcile(specs.inventory(CARD))
    assert f"the CDI spec of nodeplug.io/gpu cannot be written: {specs.folder}" in specs.why(CARD)
    assert specs.why(CARD) in specs.specs.fault
    specs.folder.unlink()
    specs.reconcile(CARD)
    assert (specs.why(CARD), specs.specs.fault) == ("", "")


def test_a_card_that_the_spec_on_disk_describes_stays_allocatable_though_a_new_one_cannot_be_written(
    tmp_path: Path, paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    specs.reconcile(CARD, SPLIT)
    assert specs.why(CARD) == ""
    assert "No space left on device" in specs.why(SPLIT)


BY_TOOLKIT = """---
cdiVersion: 0.5.0
containerEdits: {}
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
  name: "0"
- name: %s
kind: nvidia.com/gpu
"""


def test_a_card_that_another_spec_describes_is_allocatable_and_one_that_none_does_is_not(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths, cdi_write=False, cdi_kind="nvidia.com/gpu")
    assert specs.why(CARD) == PENDING
    specs.reconcile(CARD)
    assert "no CDI spec in " in specs.why(CARD)
    assert "describes nvidia.com/gpu=GPU-1; run `nvidia-ctk cdi generate`" in specs.why(CARD)
    assert specs.why(CARD) in specs.specs.fault
    paths.cdi[0].mkdir(parents=True)
    for name, why in (("GPU-2", "describes nvidia.com/gpu=GPU-1, only 0, GPU-2;"), ("GPU-1", "")):
        (paths.cdi[0] / "nvidia.yaml").write_text(BY_TOOLKIT % name)
        specs.reconcile(CARD)
        assert why in specs.why(CARD)
    assert (specs.why(CARD), specs.refusal(CARD)) == ("", "")


@pytest.mark.parametrize("text", ["{", "[]", "kind: x\ndevices: [1]", "{}", "kind: nvidia.com/gpu\ndevices: 5"])
def test_a_file_that_is_no_spec_describes_nothing(tmp_path: Path, paths: NodePaths, text: str) -> None:
    specs = Specs(tmp_path, paths, cdi_write=False, cdi_kind="nvidia.com/gpu")
    paths.cdi[0].mkdir(parents=True)
    (paths.cdi[0] / "nvidia.yaml").write_text(text)
    (paths.cdi[0] / "away.json").symlink_to("nowhere")
    specs.reconcile(CARD)
    assert "no CDI spec in " in specs.why(CARD)


def test_a_name_that_two_specs_of_a_folder_describe_is_not_allocatable_since_the_runtime_takes_neither(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths, cdi_kind="nvidia.com/gpu", cdi_folder=str(paths.cdi[1]))
    for folder in paths.cdi:
        folder.mkdir(parents=True)
    (paths.cdi[0] / "nvidia.yaml").write_text(BY_TOOLKIT % "GPU-1")
    specs.reconcile(CARD)
    assert specs.why(CARD) == ""  # in another folder it is overridden by ours, or overrides it
    (paths.cdi[1] / "nvidia.yaml").write_text(BY_TOOLKIT % "GPU-1")
    specs.reconcile(CARD)
    assert f"{paths.cdi[1]}/nvidia.yaml both describe nvidia.com/gpu=GPU-1" in specs.why(CARD)
    assert "remove one of them" in specs.refusal(CARD)


@pytest.mark.parametrize("way", ["field", "annotation"])
def test_a_name_whose_spec_has_gone_is_refused_until_it_is_written_again(
    tmp_path: Path, paths: NodePaths, way: str
) -> None:
    specs = Specs(tmp_path, paths, cdi=way)
    specs.reconcile(CARD)
    assert specs.refusal(CARD) == ""
    next(specs.folder.iterdir()).unlink()
    assert specs.refusal(CARD) == (
        f"example.com/gpu cannot be given to a container by its CDI name: no CDI spec in {paths.cdi[0]} or "
        f"{paths.cdi[1]} or {specs.folder} describes nodeplug.io/gpu=GPU-1; nodeplug writes it again within seconds"
    )
    assert specs.told == ["changed", "changed"]  # the second time for the refusal: the next look comes at once
    specs.reconcile(CARD)
    assert (specs.refusal(CARD), specs.why(CARD)) == ("", "")


def test_a_spec_without_devices_goes_for_it_is_invalid(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    assert specs.reconcile() is None


def test_whoever_waits_is_told_when_a_spec_was_written(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    for _ in range(2):
        specs.reconcile(CARD)
    assert specs.told == ["changed"]
