"""hostdir through the FlexVolume front: nothing leads out of a root."""

import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.own_descriptors import open_descriptors

from nodeplug import NotReady, mount, mounted_at
from nodeplug.testing.waiting import until
from nodeplug_volumes.hostdir import HostDir, HostDirConfig

pytestmark = pytest.mark.node
DRIVER = "nodeplug/hostdir"


@pytest.fixture
def root(area: Path) -> Path:
    path = area / "root"
    (path / "models" / "small").mkdir(parents=True)
    (path / "models" / "small" / "weights").write_text("weights")
    (area / "secret").mkdir()
    (area / "secret" / "key").write_text("key")
    return path


@pytest.fixture
def make(make_node: Any, make_host: Any, root: Path) -> Any:
    def build(**settings: Any) -> Any:
        config = HostDirConfig.model_validate({"roots": {"main": {"path": str(root), "create": True} | settings}})
        return make_node(hostdir=HostDir(config, make_host("hostdir")))

    return build


@pytest.fixture
def node(make: Any) -> Any:
    return make()


def test_a_directory_below_the_root_is_shown(node: Any) -> None:
    target = node.target("a")
    assert node.mount(DRIVER, target, {"root": "main", "path": "models/small"}) == {"status": "Success"}
    assert (target / "weights").read_text() == "weights"


def test_the_root_may_be_left_out_when_there_is_one(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, {"path": "models"})
    assert (target / "small").is_dir()


def test_unmount_leaves_the_directory_alone(node: Any, root: Path) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, {"path": "models/small"})
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert node.mounted == []
    assert (root / "models" / "small" / "weights").exists()


@pytest.mark.parametrize("path", ["..", "../secret", "models/../../secret", "/etc", "models/..", "a" + "/a" * 64])
@pytest.mark.parametrize("create", ["true", "false"])
def test_a_path_that_goes_up_or_is_absolute_is_refused(node: Any, path: str, create: str) -> None:
    answer = node.mount(DRIVER, node.target("a"), {"path": path, "create": create})
    assert answer["status"] == "Failure"
    assert node.mounted == []


@pytest.mark.parametrize("create", ["true", "false"])
@pytest.mark.parametrize("path", ["link", "link/below", "models/link"])
def test_a_symlink_is_refused_wherever_it_leads(node: Any, root: Path, area: Path, path: str, create: str) -> None:
    (root / "link").symlink_to(area / "secret")
    (root / "models" / "link").symlink_to("small")
    answer = node.mount(DRIVER, node.target("a"), {"path": path, "create": create})
    assert answer["status"] == "Failure"
    assert "symlink" in answer["message"]
    assert (node.mounted, [entry.name for entry in (area / "secret").iterdir()]) == ([], ["key"])


def test_nothing_is_made_in_a_root_whose_disk_of_fstab_is_not_mounted(
    make_node: Any, make_host: Any, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = area / "disk"
    place.mkdir()
    (area / "fstab").write_text(f"/dev/vdb {place.resolve()} ext4 nofail 0 2\n")
    monkeypatch.setenv("LIBMOUNT_FSTAB", str(area / "fstab"))
    config = HostDirConfig.model_validate({"roots": {"main": {"path": str(place), "create": True}}})
    plugin = HostDir(config, make_host("hostdir"))
    node, options = make_node(hostdir=plugin), {"path": "new", "create": "true"}
    answer = node.mount(DRIVER, node.target("a"), options)
    assert (answer["status"], "is its disk mounted?" in answer["message"]) == ("Failure", True)
    assert list(place.iterdir()) == []
    with pytest.raises(NotReady, match=r"roots are missing: main \(fstab has a disk at .*\); are their disks mounted"):
        plugin.health()
    mount("none", str(place), "tmpfs")
    assert node.mount(DRIVER, node.target("a"), options) == {"status": "Success"}
    assert (place / "new").is_dir()
    plugin.health()


def test_what_lies_below_the_mount_point_of_a_disk_that_is_away_is_not_served_in_its_place(
    node: Any, area: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (area / "fstab").write_text(f"/dev/vdb {root.resolve()} ext4 nofail 0 2\n")
    monkeypatch.setenv("LIBMOUNT_FSTAB", str(area / "fstab"))
    answer = node.mount(DRIVER, node.target("a"), {"path": "models/small"})
    assert (answer["status"], "is its disk mounted?" in answer["message"]) == ("Failure", True)
    assert node.mounted == []


def test_a_file_is_no_directory(node: Any) -> None:
    assert "not a directory" in node.mount(DRIVER, node.target("a"), {"path": "models/small/weights"})["message"]


def test_a_missing_directory_is_a_failure(node: Any) -> None:
    assert "no such directory" in node.mount(DRIVER, node.target("a"), {"path": "models/none"})["message"]


def test_create_makes_missing_directories_with_the_exact_mode(node: Any, root: Path) -> None:
    node.mount(DRIVER, node.target("a"), {"path": "new/deep", "create": "true", "mode": "0777"})
    assert (root / "new" / "deep").stat().st_mode & 0o7777 == 0o777


def test_create_gives_new_directories_to_the_pods_group(node: Any, root: Path) -> None:
    options = {"path": "new", "create": "true", "mode": "2770", "kubernetes.io/mounterArgs.FsGroup": "2000"}
    node.mount(DRIVER, node.target("a"), options)
    assert ((root / "new").stat().st_gid, (root / "new").stat().st_mode & 0o7777) == (2000, 0o2770)


def test_create_leaves_an_existing_directory_as_it_is(node: Any, root: Path) -> None:
    (root / "models").chmod(0o711)
    node.mount(DRIVER, node.target("a"), {"path": "models", "create": "true", "mode": "0777"})
    assert (root / "models").stat().st_mode & 0o7777 == 0o711


def test_create_is_refused_where_the_root_does_not_allow_it(make: Any, root: Path) -> None:
    node = make(create=False)
    answer = node.mount(DRIVER, node.target("a"), {"path": "new", "create": "true"})
    assert "does not allow" in answer["message"]
    assert not (root / "new").exists()


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"read_only": True}, {}),
        ({}, {"readOnly": "true"}),
        ({}, {"kubernetes.io/readwrite": "ro"}),
    ],
)
def test_read_only_may_come_from_root_option_or_kubelet(
    make: Any, settings: dict[str, bool], options: dict[str, str]
) -> None:
    node = make(**settings)
    target = node.target("a")
    node.mount(DRIVER, target, {"path": "models"} | options)
    with pytest.raises(OSError, match="Read-only"):
        (target / "x").write_text("")


def test_an_unknown_root_names_the_known_ones(node: Any) -> None:
    assert "allows: main" in node.mount(DRIVER, node.target("a"), {"root": "other"})["message"]


@pytest.mark.whole
def test_a_directory_swapped_for_a_symlink_all_the_time_never_leads_out(node: Any, root: Path, area: Path) -> None:
    victim, aside, link = root / "victim", root / "aside", root / "link"
    victim.mkdir()
    link.symlink_to(area / "secret")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            victim.rename(aside)
            link.rename(victim)
            victim.rename(link)
            aside.rename(victim)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(60):
            target = node.target(f"p{number}")
            node.mount(DRIVER, target, {"path": "victim"})
            assert not (target / "key").exists()
            node.unmount(DRIVER, target)
    finally:
        stop.set()
        swapper.join()


def test_a_root_that_is_the_whole_filesystem_is_refused() -> None:
    with pytest.raises(ValidationError, match="whole filesystem"):
        HostDirConfig.model_validate({"roots": {"all": {"path": "/"}}})


def test_no_descriptor_is_left_open(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, {"path": "models"})
    node.unmount(DRIVER, target)
    before = len(open_descriptors())
    for path in ("models", "none", "../x"):
        node.mount(DRIVER, target, {"path": path, "create": "false"})
        node.unmount(DRIVER, target)
    until(lambda: len(open_descriptors()) <= before)  # other threads have some for a moment


def test_a_nested_mount_in_the_source_does_not_hinder_unmount(node: Any) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, {"path": "models"})
    node.mount(DRIVER, two, {"path": "models/small"})
    assert node.unmount(DRIVER, one) == {"status": "Success"}
    assert mounted_at(str(two)) is not None
