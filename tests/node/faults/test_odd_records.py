"""Records that no daemon has written: one of them must not keep the daemon from starting."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.journal import read_boot_id
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
PLUGINS = (
    '[plugins.tmpfs]\n[plugins.bridge.config]\ndata_dir = "{root}/addresses"\n[plugins.dhcp]\n[plugins.networks]\n'
)
FOLDERS = ("flexvolume", "csi-provisioner", "resource-claims", "tmpfs", "bridge", "dhcp", "networks")
ODD: dict[str, Any] = {
    "half of a surrogate pair": "\ud800",
    "a byte that is no text": "\udcff",
    "a path": "../../etc",
    "nothing": "",
    "a long one": "x" * 100_000,
    "a NUL": "\0",
}


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, PLUGINS.format(root=short_path), fork=True)
    yield made
    made.stop()


def until_all_run(node: ScratchNode) -> None:
    until(lambda: {one["state"] for one in node.status()["plugins"]} == {"running"}, found=lambda: node.log)


@pytest.mark.parametrize("odd", ODD)
def test_a_record_with_an_odd_key_is_set_aside_and_the_daemon_starts(node: ScratchNode, odd: str) -> None:
    record = {"version": 1, "key": ODD[odd], "phase": "done", "boot_id": read_boot_id(), "request": {}, "data": {}}
    for name in FOLDERS:
        folder = node.paths.journal / name
        folder.mkdir(parents=True)
        (folder / "odd.json").write_text(json.dumps(record))
    node.start()
    until_all_run(node)
    for name in ("flexvolume", "bridge", "networks"):
        assert [path.name for path in (node.paths.journal / name).glob("odd.*")] == ["odd.damaged"]
    assert "odd.json is set aside as *.damaged: it is not a record" in node.log
    assert "Traceback" not in node.log


@pytest.mark.parametrize("odd", ODD)
def test_an_attachment_with_an_odd_name_does_not_keep_the_daemon_from_starting(node: ScratchNode, odd: str) -> None:
    node.paths.attachments.mkdir(parents=True)
    attachment = {"claim": "bridge", "network": "n", "container_id": ODD[odd], "ifname": "eth0", "netns": ODD[odd]}
    record = {**attachment, "time": 1.0, "host": [1, 2], "result": {"cniVersion": "1.1.0"}}
    for suffix in ("json", "begun", "delegated"):
        (node.paths.attachments / f"odd.{suffix}").write_text(json.dumps(record))
    node.start()
    until_all_run(node)
    assert node.run("status", "--json").returncode == 0
    assert "Traceback" not in node.log
