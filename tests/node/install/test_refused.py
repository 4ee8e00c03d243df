"""Names that somebody else has, and network configurations that no runtime takes: refused before anything changes."""

import json
import threading
from typing import TYPE_CHECKING

import pytest

from nodeplug.contract.errors import InvalidRequest
from nodeplug.install.ownership import ForeignFile

if TYPE_CHECKING:
    from tests.node.install.conftest import Node

pytestmark = pytest.mark.unprivileged


@pytest.mark.parametrize("name", ["nodeplug-loopback", "nodeplug-bridge"])
def test_foreign_file_in_the_binary_folder_is_refused_by_name(node: "Node", name: str) -> None:
    node.cni_bin.mkdir(parents=True)
    (node.cni_bin / name).write_bytes(b"somebody else's")
    before = node.everything()
    with pytest.raises(ForeignFile, match=f"{node.cni_bin}/{name}; move"):
        node.install()
    assert node.everything() == before


def test_foreign_symlink_is_refused(node: "Node") -> None:
    node.cni_bin.mkdir(parents=True)
    (node.cni_bin / "nodeplug-bridge").symlink_to("bridge")
    with pytest.raises(ForeignFile, match="nodeplug-bridge"):
        node.install()


def test_foreign_driver_is_refused(node: "Node") -> None:
    (node.flex / "nodeplug~loopfile").mkdir(parents=True)
    (node.flex / "nodeplug~loopfile/loopfile").write_text("#!/bin/sh\n")
    with pytest.raises(ForeignFile, match="nodeplug~loopfile/loopfile"):
        node.install()


def test_folder_with_foreign_files_in_the_place_of_a_driver_is_refused(node: "Node") -> None:
    (node.flex / "nodeplug~loopfile").mkdir(parents=True)
    (node.flex / "nodeplug~loopfile/notes").touch()
    with pytest.raises(ForeignFile, match="nodeplug~loopfile/notes"):
        node.install()


def test_foreign_conflist_is_refused(node: "Node") -> None:
    node.cni_conf.mkdir(parents=True)
    (node.cni_conf / "10-pods.conflist").write_bytes(node.CONFLIST)
    with pytest.raises(ForeignFile, match=r"10-pods\.conflist"):
        node.install(conflists={"10-pods.conflist": node.CONFLIST})


def test_all_foreign_names_are_told_at_once(node: "Node") -> None:
    node.cni_bin.mkdir(parents=True)
    (node.cni_bin / "nodeplug-bridge").touch()
    (node.cni_bin / "nodeplug-loopback").touch()
    with pytest.raises(ForeignFile, match=r"nodeplug-bridge, .*nodeplug-loopback"):
        node.install()


def test_claim_cannot_take_the_name_of_the_script(node: "Node") -> None:
    with pytest.raises(InvalidRequest, match="nodeplug-cni"):
        node.install(cni=("nodeplug-cni",))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"name":"pods"', b'{"name":"pods","plugins":[]}', b'{"plugins":[{}]}'])
def test_broken_conflist_is_refused_before_anything_is_written(node: "Node", data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="network configuration list"):
        node.install(conflists={"10-pods.conflist": data})
    assert node.everything() == {}


@pytest.mark.parametrize("name", ["pods.conf", "../pods.conflist", ".pods.conflist"])
def test_conflist_name_that_no_runtime_reads_is_refused(node: "Node", name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a name for a network configuration"):
        node.install(conflists={name: node.CONFLIST})


def test_conflist_keeps_its_content_and_gains_the_mark(node: "Node") -> None:
    node.install(conflists={"10-pods.conflist": node.CONFLIST})
    document = json.loads((node.cni_conf / "10-pods.conflist").read_bytes())
    assert document == {**json.loads(node.CONFLIST), "installedBy": "nodeplug"}


def test_uninstall_leaves_foreign_files(node: "Node") -> None:
    node.install()
    (node.cni_bin / "bridge").touch()
    (node.cni_bin / "nodeplug-old").symlink_to("bridge")
    (node.cni_conf).mkdir(parents=True)
    (node.cni_conf / "10-pods.conflist").write_bytes(node.CONFLIST)
    (node.flex / "other~driver").mkdir()
    (node.flex / "other~driver/driver").touch()
    (node.flex / "third~driver").mkdir()
    (node.flex / "third~driver/capabilities.json").write_text("{}")
    node.uninstall()
    assert node.names(node.cni_bin) == ["bridge", "nodeplug-old"]
    assert node.names(node.cni_conf) == ["10-pods.conflist"]
    assert node.names(node.flex) == ["other~driver", "third~driver"]


def test_uninstall_keeps_a_driver_folder_with_foreign_files_and_says_so(node: "Node") -> None:
    node.install()
    (node.flex / "nodeplug~loopfile/notes").touch()
    report = node.uninstall()
    assert "nodeplug did not make" in report.kept[0]
    assert node.names(node.flex / "nodeplug~loopfile") == ["notes"]


def test_a_program_that_comes_while_others_are_installed_is_refused_and_stays(node: "Node") -> None:
    many = tuple(f"nodeplug-{number:03}" for number in range(200))
    node.install(cni=(*many, "loopback"))
    first, last = node.cni_bin / many[0], node.cni_bin / "loopback"
    written = first.read_bytes()

    def replace() -> None:
        while first.read_bytes() == written:
            pass
        (node.cni_bin / "foreign").write_text("#!/bin/true\n")
        (node.cni_bin / "foreign").rename(last)

    other = threading.Thread(target=replace)
    other.start()
    with pytest.raises(ForeignFile, match="loopback was made by somebody else meanwhile"):
        node.install(cni=(*many, "loopback"), text="two")
    other.join()
    assert last.read_text() == "#!/bin/true\n"
