"""The pods of a real daemon's CSI drivers, as kubelet gives them their volumes: inline, claimed, beside FlexVolume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Pod, mounted_at
from nodeplug.testing import CsiCaller, CsiDriverSpec, CsiFailure, CsiVolume

pytestmark = pytest.mark.node
ONE, TWO = (Pod(name=f"pod-{number}", namespace="shop", uid=f"uid-{number}") for number in (1, 2))
HOSTDIR = '[plugins.hostdir.config.roots.data]\npath = "{data}"\ncreate = true\n'
CLAIMED = CsiVolume("pv-1", {"root": "data", "path": "one"}, handle="data/one")


@pytest.fixture
def tmpfs(start_kubelet: Callable[..., Any]) -> CsiCaller:
    return CsiCaller(start_kubelet("[plugins.tmpfs]\n").root, "tmpfs.nodeplug")


@pytest.fixture
def hostdir(start_kubelet: Callable[..., Any], tmp_path: Path) -> CsiCaller:
    (tmp_path / "one").mkdir()
    spec = CsiDriverSpec(volume_lifecycle_modes=("Persistent",))
    return CsiCaller(start_kubelet(HOSTDIR.format(data=tmp_path)).root, "hostdir.nodeplug", spec)


def test_a_pods_own_volume_has_its_group_and_its_size(tmpfs: CsiCaller) -> None:
    target = tmpfs.mount(ONE, CsiVolume("cache", {"size": "8Mi"}), fs_group=4711)
    usage = tmpfs.stats(ONE, "cache")
    assert usage is not None
    assert (target.stat().st_gid, usage["BYTES"]["total"]) == (4711, 8 << 20)
    tmpfs.unmount(ONE, "cache")
    assert not target.parent.exists()


def test_pods_share_a_claimed_volume_and_each_ends_alone(hostdir: CsiCaller) -> None:
    one, two = (hostdir.mount(pod, CLAIMED) for pod in (ONE, TWO))
    (one / "word").write_text("seen by both")
    hostdir.unmount(ONE, "pv-1")
    assert (two / "word").read_text() == "seen by both"
    hostdir.unmount(TWO, "pv-1")
    assert not hostdir.global_mount("data/one").parent.exists()


def test_a_volume_that_is_published_again_stays_as_it_is(hostdir: CsiCaller) -> None:
    target = hostdir.mount(ONE, CLAIMED)
    before = mounted_at(str(target))
    assert hostdir.mount(ONE, CLAIMED) == target
    assert mounted_at(str(target)) == before
    hostdir.unmount(ONE, "pv-1")


def test_a_refused_volume_leaves_no_folder(hostdir: CsiCaller) -> None:
    absent = CsiVolume("pv-2", {"root": "data", "path": "absent"}, handle="data/absent")
    with pytest.raises(CsiFailure) as caught:
        hostdir.mount(ONE, absent)
    assert (caught.value.code, caught.value.final) == ("NOT_FOUND", True)
    assert not hostdir.target(ONE, "pv-2").parent.exists()


def test_a_directory_is_not_created_for_a_claimed_volume_that_is_gone(hostdir: CsiCaller, tmp_path: Path) -> None:
    gone = CsiVolume("pv-2", {"root": "data", "path": "gone", "create": "true"}, handle="data/gone")
    with pytest.raises(CsiFailure) as caught:
        hostdir.mount(ONE, gone)
    assert (caught.value.code, "it may be on another node" in caught.value.message) == ("NOT_FOUND", True)
    assert not (tmp_path / "gone").exists()
