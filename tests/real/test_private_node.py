"""Nodes of their own on one machine: what one of them is and leaves must be nothing to the others."""

from collections.abc import Callable
from pathlib import Path

from tests.real.consumers import PrivateNode
from tests.real.consumers.private_node import KERNEL_SETTINGS

from nodeplug.testing.inventory import cgroups_of

MakeNode = Callable[..., PrivateNode]


def test_a_node_keeps_its_folders_and_cgroup_when_another_ends(make_private_node: MakeNode, short_path: Path) -> None:
    first = make_private_node(short_path / "first")
    with make_private_node(short_path / "second") as second:
        (second.folder / "var/lib/kubelet/mine").touch()
        first.close()
        assert second.run("ls", "/var/lib/kubelet").split() == ["mine"]
        assert not cgroups_of(first.cgroup)
        assert cgroups_of(second.cgroup)
    assert not cgroups_of(second.cgroup)


def test_a_process_in_a_nodes_cgroup_outlives_other_nodes(make_private_node: MakeNode, short_path: Path) -> None:
    with make_private_node(short_path / "first") as node:
        procs = cgroups_of(node.cgroup)[0] / "cgroup.procs"
        node.run("sh", "-c", f"sleep 1000 >/dev/null 2>&1 & echo $! >{procs}")
        make_private_node(short_path / "second").close()
        assert procs.read_text().split()


def test_kernel_settings_changed_inside_stay_as_they_are_outside(make_private_node: MakeNode, short_path: Path) -> None:
    before = [Path(path).read_text() for path in KERNEL_SETTINGS]
    with make_private_node(short_path / "n") as node:
        assert [node.run("cat", path) for path in KERNEL_SETTINGS] == before
        for path in KERNEL_SETTINGS:
            node.run("sh", "-c", f"echo 12345 >{path}")
            assert node.run("cat", path) == "12345\n"
        assert [Path(path).read_text() for path in KERNEL_SETTINGS] == before
