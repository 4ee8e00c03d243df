"""tmpfs through the FlexVolume front."""

import subprocess
import sys
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


@pytest.mark.parametrize("size", ["1Ei", "1Pi"])
def test_without_a_limit_a_volume_has_half_of_the_node_s_memory_at_most(make: Any, size: str) -> None:
    node = make()
    assert "this node allows at most" in node.mount(DRIVER, node.target("a"), {"size": size})["message"]


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


def options_of(target: Path) -> tuple[str, ...]:
    found = mounted_at(str(target))
    assert found is not None
    return found.options


def test_a_pod_keeps_its_tmpfs_out_of_swap(node: Any, target: Path) -> None:
    assert node.mount(DRIVER, target, OPTIONS | {"noswap": "true"}) == {"status": "Success"}
    assert "noswap" in options_of(target)


def test_a_node_that_keeps_all_of_them_out_of_swap_lets_no_pod_change_that(make: Any) -> None:
    node = make(noswap=True)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS | {"noswap": "false"})
    assert "noswap" in options_of(target)


@pytest.mark.whole
@pytest.mark.programs("unshare")
def test_what_noswap_needs_is_told_where_the_kernel_refuses_it(tmp_path: Path) -> None:
    """As in a user namespace, where no kernel allows it."""
    script = (
        "import pathlib, sys\n"
        "from nodeplug import PluginError, VolumePublish\n"
        "from nodeplug.testing import host\n"
        "from nodeplug_volumes.tmpfs import Tmpfs, TmpfsConfig\n"
        "scratch = pathlib.Path(sys.argv[1])\n"
        "target = scratch / 'target'\n"
        "target.mkdir()\n"
        "asked = {'driver': 'nodeplug/tmpfs', 'volume_id': 'x', 'target_path': str(target)}\n"
        "plugin = Tmpfs(TmpfsConfig(), host(scratch, plugin='tmpfs'))\n"
        "plugin.volume_publish(VolumePublish(**asked, options={'size': '1Mi'}))\n"
        "pathlib.Path(scratch / 'other').mkdir()\n"
        "asked['target_path'] = str(scratch / 'other')\n"
        "try:\n"
        "    plugin.volume_publish(VolumePublish(**asked, options={'size': '1Mi', 'noswap': 'true'}))\n"
        "except PluginError as error:\n"
        "    print(error.message)\n"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if "unshare failed" in done.stderr:
        pytest.skip("needs user namespaces for ordinary users")
    assert "noswap needs Linux 6.4, and root outside of user namespaces: this is Linux" in done.stdout, done.stderr


@pytest.mark.parametrize("huge", ["always", "within_size", "advise"])
def test_a_pod_has_huge_pages_where_it_asks_for_them(node: Any, target: Path, huge: str) -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").exists():
        pytest.skip("needs a kernel with transparent huge pages")
    assert node.mount(DRIVER, target, OPTIONS | {"huge": huge}) == {"status": "Success"}
    assert f"huge={huge}" in options_of(target)


def test_the_node_says_what_a_pod_has_that_asks_for_no_pages(make: Any) -> None:
    node = make(huge="advise")
    plain, own = node.target("a"), node.target("b")
    node.mount(DRIVER, plain, OPTIONS)
    node.mount(DRIVER, own, OPTIONS | {"huge": "never"})
    assert "huge=advise" in options_of(plain)
    assert not [option for option in options_of(own) if option.startswith("huge=")]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"noswap": "yes"}, "option noswap is 'yes'; it must be 'true' or 'false'"),
        (
            {"huge": "always,uid=0"},
            "option huge is 'always,uid=0'; it must be one of never, always, within_size, advise",
        ),
        ({"swap": "no"}, "tmpfs has no option 'swap'; it has size, mode, noswap, huge"),
    ],
)
def test_an_option_that_means_nothing_is_refused(node: Any, target: Path, option: dict[str, str], message: str) -> None:
    assert node.mount(DRIVER, target, OPTIONS | option)["message"].startswith(f"{message} (request ")
    assert node.mounted == []
