"""A volume whose stage fails when a pod is to get it: nothing stays, and what its caller made is as it was."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

pytestmark = pytest.mark.node
GUESTS = Path(__file__).parent / "guests"
PLUGIN = '[plugins.slow]\nuses = "slow:Slow"\nconfig = {{ folder = "{}" }}\n'


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("there", [False, True])
def test_a_failed_stage_leaves_nothing_and_its_callers_folder_as_it_was(
    start_kubelet: Callable[..., Any], tmp_path: Path, there: bool
) -> None:
    kubelet = start_kubelet(PLUGIN.format(tmp_path), env={"PYTHONPATH": str(GUESTS)})
    target = kubelet.target("a")
    (target.parent / "vol_data.json").write_text("{}")  # kubelet's own
    if there:
        target.mkdir()
    before = (files(kubelet.root / "pods"), files(kubelet.node.paths.state / "staged"))
    (tmp_path / "fail").touch()
    with pytest.raises(grpc.RpcError, match="the disk is broken"):
        kubelet.publish("slow.acme", "one", "a", {"name": "one"})
    assert (kubelet.mounted(), kubelet.node.status()["volumes"]) == ([], [])
    assert (files(kubelet.root / "pods"), files(kubelet.node.paths.state / "staged")) == before
    (tmp_path / "fail").unlink()
    assert kubelet.publish("slow.acme", "one", "a", {"name": "one"}).is_mount()
    kubelet.unpublish("slow.acme", "one", "a")
    assert kubelet.mounted() == []
