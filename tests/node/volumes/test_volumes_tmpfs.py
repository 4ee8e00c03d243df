"""tmpfs through the FlexVolume front."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug import mounted_at
from nodeplug_volumes.tmpfs import Tmpfs, TmpfsConfig

pytestmark = pytest.mark.node
DRIVER = "nodeplug/tmpfs"
OPTIONS = {"size": "1Mi"}


@pytest.fixture
def make(make_node: Any, make_host: Any) -> Any:
    return lambda **config: make_node(tmpfs=Tmpfs(TmpfsConfig.model_validate(config), make_host("tmpfs")))


@pytest.fixture
def node(make: Any) -> Any:
    return make()


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path


def test_the_size_is_a_hard_limit(node: Any, target: Path) -> None:
    assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
    with pytest.raises(OSError, match="No space left"):
        (target / "big").write_bytes(bytes(2 << 20))


def test_two_pods_with_equal_options_have_a_tmpfs_each(node: Any, target: Path) -> None:
    other = node.target("b")
    node.mount(DRIVER, target, OPTIONS)
    node.mount(DRIVER, other, OPTIONS)
    (target / "x").write_text("mine")
    assert not (other / "x").exists()


def test_unmounting_one_pod_keeps_the_other(node: Any, target: Path) -> None:
    other = node.target("b")
    node.mount(DRIVER, target, OPTIONS)
    node.mount(DRIVER, other, OPTIONS)
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert node.mounted == ["pods/b"]


def test_a_pod_with_a_group_owns_its_tmpfs_by_group(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"kubernetes.io/mounterArgs.FsGroup": "2000"})
    assert (target.stat().st_gid, target.stat().st_mode & 0o7777) == (2000, 0o2770)


def test_a_pod_without_a_group_gets_a_tmpfs_for_everybody(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    assert target.stat().st_mode & 0o7777 == 0o1777


def test_the_mode_is_as_asked(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"mode": "0700"})
    assert target.stat().st_mode & 0o7777 == 0o700


def test_files_cannot_be_executed_unless_the_node_allows_it(node: Any, make: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    strict = mounted_at(str(target))
    lax_node = make(noexec=False)
    other = lax_node.target("b")
    lax_node.mount(DRIVER, other, OPTIONS)
    lax = mounted_at(str(other))
    assert strict is not None
    assert lax is not None
    assert {"nosuid", "nodev", "noexec"} <= set(strict.options)
    assert "noexec" not in lax.options


@pytest.mark.parametrize("options", [{}, {"size": "0"}, {"size": "1"}, {"size": "1Mi,mode=0"}, {"size": "50%"}])
def test_a_tmpfs_without_a_true_limit_is_refused(node: Any, target: Path, options: dict[str, str]) -> None:
    assert node.mount(DRIVER, target, options)["status"] == "Failure"
    assert node.mounted == []


@pytest.mark.parametrize("mode", ["0777,uid=0", "999", "rwx", "1"])
def test_a_mode_that_is_not_octal_is_refused(node: Any, target: Path, mode: str) -> None:
    assert "must be octal" in node.mount(DRIVER, target, OPTIONS | {"mode": mode})["message"]


def test_the_nodes_default_and_limit_hold(make: Any) -> None:
    node = make(default_size="1Mi", max_size="2Mi")
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    assert "at most 2Mi" in node.mount(DRIVER, node.target("b"), {"size": "3Mi"})["message"]


def test_empty_files_are_limited_too(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)

    def touch_all() -> None:
        for number in range(1000):
            (target / str(number)).touch()

    with pytest.raises(OSError, match="No space left"):
        touch_all()


def test_a_read_only_tmpfs_cannot_be_written(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only"):
        (target / "x").write_text("")
