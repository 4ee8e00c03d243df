"""Devices while the filesystem of the state folder, or of kubelet's sockets, is frozen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.node.frozen_disk.freezing import NET, freeze, thaw, thaw_if_frozen

from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until


def confirmed(node: ScratchNode) -> int:
    """Return how many devices are known to be held."""
    (resource,) = node.status()["resources"]
    return int(resource["allocated"] - resource["unconfirmed"])


@contextmanager
def beside_kubelet(disk: Path, root: Path, code: Path) -> Iterator[tuple[ScratchNode, BlockingKubelet]]:
    """Give a node that is not started and a kubelet; the disk is thawed at the end, so that the node can end."""
    node = ScratchNode(root, NET, supervisor='listen = ""\n', env={"PYTHONPATH": str(code)}, fork=True)
    with BlockingKubelet(root / "var" / "lib" / "kubelet") as kubelet:
        try:
            yield node, kubelet
        finally:
            thaw_if_frozen(disk)
            node.kill()


@pytest.mark.whole
def test_devices_are_allocated_and_their_holders_known_while_the_disk_of_the_state_folder_is_frozen(
    disk: Path, short_path: Path, code: Path
) -> None:
    with beside_kubelet(disk, short_path, code) as (node, kubelet):
        node.start()
        kubelet.until_allocatable("example.com/thing", 2)
        freeze(disk)
        until(lambda: "state folder" in node.status()["reasons"])
        for count, pod in enumerate(("first", "second"), 1):
            kubelet.admit(pod, {"example.com/thing": 1})
            until(lambda: confirmed(node) == count)  # noqa: B023  it is asked in this very turn


def test_a_plugin_ends_while_kubelets_folder_of_sockets_is_frozen_and_its_socket_goes_when_that_answers(
    make_disk: Callable[[str], Path], short_path: Path, code: Path
) -> None:
    folder = make_disk("var/lib/kubelet/device-plugins")
    with beside_kubelet(folder, short_path, code) as (node, kubelet):
        node.start()
        kubelet.until_allocatable("example.com/thing", 2)
        freeze(folder)
        left = list(folder.glob("nodeplug-*.sock"))
        node.configure("")
        until(lambda: "configuration reloaded" in node.log)
        assert node.status()["resources"] == []
        thaw(folder)
        until(lambda: not any(path.exists() for path in left))
        node.configure(NET)
        kubelet.until_allocatable("example.com/thing", 2)


def test_a_daemon_starts_while_kubelets_folder_of_sockets_is_frozen_and_registers_when_it_answers(
    make_disk: Callable[[str], Path], short_path: Path, code: Path
) -> None:
    folder = make_disk("var/lib/kubelet/device-plugins")
    with beside_kubelet(folder, short_path, code) as (node, kubelet):
        freeze(folder)
        node.start()
        until(lambda: any(f"check the filesystem of {folder}" in one["error"] for one in node.status()["resources"]))
        thaw(folder)
        kubelet.until_allocatable("example.com/thing", 2)
        until(lambda: node.status()["resources"][0]["error"] == "")
