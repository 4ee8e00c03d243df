"""What an installation writes, keeps and removes, on real folders; files are made as root, whatever the umask."""

import os
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nodeplug import PluginError, mount, unmount
from nodeplug.install.drivers import reprobe
from nodeplug.install.report import Report

if TYPE_CHECKING:
    from tests.node.install.conftest import Node

pytestmark = pytest.mark.unprivileged


def test_each_cni_claim_becomes_a_file_of_its_own(node: "Node") -> None:
    node.install()
    assert node.names(node.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    for path in node.cni_bin.iterdir():
        status = path.lstat()
        assert (stat.S_IFMT(status.st_mode), status.st_mode & 0o777, status.st_nlink) == (stat.S_IFREG, 0o755, 1)


def test_who_copies_over_one_name_does_not_write_through_to_the_others(node: "Node", tmp_path: Path) -> None:
    node.install()
    foreign = tmp_path / "loopback"
    foreign.write_text("#!/bin/sh\necho foreign\n")
    foreign.chmod(0o755)
    subprocess.run(["cp", foreign, node.cni_bin / "nodeplug-loopback"], check=True)
    told = [
        subprocess.run([node.cni_bin / f"nodeplug-{name}"], capture_output=True, text=True, check=True).stdout
        for name in ("bridge", "loopback")
    ]
    assert told == ["one\n", "foreign\n"]


def test_installed_names_can_be_executed(node: "Node") -> None:
    node.install()
    for path in (node.cni_bin / "nodeplug-bridge", node.flex / "nodeplug~loopfile/loopfile"):
        assert subprocess.run([path], capture_output=True, text=True, check=True).stdout == "one\n"


def test_each_driver_becomes_a_folder_with_executable_and_answer(node: "Node") -> None:
    node.install()
    assert node.names(node.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]
    assert (node.flex / "nodeplug~loopfile/capabilities.json").read_bytes() == node.ANSWER


def test_driver_without_a_vendor_lives_in_a_folder_of_its_name(node: "Node") -> None:
    node.install(drivers=("loopfile",))
    assert (node.flex / "loopfile/loopfile").is_file()


def test_modes_do_not_depend_on_the_umask(node: "Node") -> None:
    before = os.umask(0o077)
    try:
        node.install()
    finally:
        os.umask(before)
    assert (node.flex / "nodeplug~loopfile").stat().st_mode & 0o777 == 0o755
    assert (node.flex / "nodeplug~loopfile/capabilities.json").stat().st_mode & 0o777 == 0o644
    assert (node.cni_bin / "nodeplug-bridge").stat().st_mode & 0o777 == 0o755


def test_second_installation_touches_nothing(node: "Node") -> None:
    first = node.install(conflists={"10-pods.conflist": node.CONFLIST})
    before = node.everything()
    second = node.install(conflists={"10-pods.conflist": node.CONFLIST})
    assert node.everything() == before
    assert (len(first.created), len(second.unchanged)) == (4, 5)
    assert second == Report(unchanged=second.unchanged)


def test_new_script_replaces_the_files(node: "Node") -> None:
    node.install()
    report = node.install(text="two")
    assert sorted(map(os.path.basename, report.updated)) == ["loopfile", "nodeplug-bridge", "nodeplug-loopback"]
    assert (node.flex / "nodeplug~loopfile/loopfile").read_bytes() == node.scripts("two").flex
    assert node.names(node.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]


def test_nothing_temporary_is_left_anywhere(node: "Node", tmp_path: Path) -> None:
    node.install()
    node.install(text="two", conflists={"10-pods.conflist": node.CONFLIST})
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


def test_claim_that_is_gone_loses_its_names(node: "Node") -> None:
    node.install(drivers=("nodeplug/loopfile", "nodeplug/tmpfs"))
    report = node.install(cni=("nodeplug-bridge",), drivers=("nodeplug/tmpfs",))
    assert sorted(map(os.path.basename, report.removed)) == ["nodeplug-loopback", "nodeplug~loopfile"]
    assert node.names(node.flex) == ["nodeplug~tmpfs"]


def test_without_prune_a_claim_that_is_gone_keeps_its_names(node: "Node") -> None:
    node.install()
    assert node.install(cni=(), drivers=(), prune=False).removed == []
    assert (node.cni_bin / "nodeplug-bridge").exists()


def test_driver_with_mounted_volumes_is_kept(node: "Node") -> None:
    node.install()
    report = node.install(drivers=(), in_use=("nodeplug/loopfile",))
    assert "still mounted" in report.kept[0]
    assert (node.flex / "nodeplug~loopfile/loopfile").is_file()


def test_without_cni_claims_nothing_of_ours_stays(node: "Node") -> None:
    node.install()
    node.install(cni=())
    assert node.names(node.cni_bin) == []


def test_half_removed_driver_is_completed_by_the_next_installation(node: "Node") -> None:
    node.install()
    (node.flex / "nodeplug~loopfile/loopfile").unlink()
    node.install()
    assert (node.flex / "nodeplug~loopfile/loopfile").is_file()


def test_half_removed_driver_is_removed_by_uninstall(node: "Node") -> None:
    node.install()
    (node.flex / "nodeplug~loopfile/loopfile").unlink()
    node.uninstall()
    assert node.names(node.flex) == []


def test_leftovers_of_a_killed_installation_are_swept(node: "Node") -> None:
    node.install()
    old = node.cni_bin / ".nodeplug-000000.tmp"
    young = node.cni_bin / ".nodeplug-111111.tmp"
    temporary = node.flex.parent / ".nodeplug-222222.tmp"
    old.touch()
    young.touch()
    temporary.mkdir()
    (temporary / "loopfile").touch()
    for path in (old, temporary):
        os.utime(path, (1, 1))
    node.install()
    assert (old.exists(), young.exists(), temporary.exists()) == (False, True, False)


def test_uninstall_removes_all_that_is_ours(node: "Node") -> None:
    node.install(conflists={"10-pods.conflist": node.CONFLIST})
    report = node.uninstall()
    assert len(report.removed) == 4
    assert [node.names(folder) for folder in (node.cni_bin, node.cni_conf, node.flex)] == [[], [], []]


def test_uninstall_of_nothing_succeeds(node: "Node") -> None:
    assert node.uninstall() == Report()


@pytest.mark.node
def test_plugin_folder_on_a_filesystem_of_its_own_still_gets_whole_drivers(node: "Node") -> None:
    node.flex.mkdir(parents=True)
    mount("none", str(node.flex), "tmpfs")
    try:
        report = node.install()
        assert str(node.flex / "nodeplug~loopfile") in report.created
        assert node.names(node.flex) == ["nodeplug~loopfile"]
        assert node.names(node.flex.parent) == ["exec"]
    finally:
        unmount(str(node.flex))


@pytest.mark.node
def test_full_filesystem_is_told_and_leaves_no_half_driver(node: "Node") -> None:
    node.flex.mkdir(parents=True)
    mount("none", str(node.flex), "tmpfs", options=("size=4k",))
    try:
        with pytest.raises(PluginError, match="No space left"):
            node.install(text="long" * 10)
        assert node.names(node.flex) == []
    finally:
        unmount(str(node.flex))


def test_file_in_the_place_of_a_folder_is_told(node: "Node") -> None:
    node.cni_bin.parent.mkdir(parents=True)
    node.cni_bin.touch()
    with pytest.raises(PluginError, match=f"cannot install {node.cni_bin}"):
        node.install()


def test_reprobe_touches_our_executables_alone(node: "Node") -> None:
    node.install()
    script = node.flex / "nodeplug~loopfile/loopfile"
    os.utime(script, (1, 1))
    (node.flex / "other~driver").mkdir()
    (node.flex / "other~driver/driver").touch()
    os.utime(node.flex / "other~driver/driver", (1, 1))
    reprobe(node.flex, ["nodeplug/loopfile", "nodeplug/absent", "other/driver"])
    assert script.stat().st_mtime > 1
    assert (node.flex / "other~driver/driver").stat().st_mtime == 1
    assert node.names(node.flex) == ["nodeplug~loopfile", "other~driver"]
