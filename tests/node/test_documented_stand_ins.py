"""The examples of the page about stand-ins run as they stand there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import need

import nodeplug.testing
from nodeplug import Pod, unmount

BLOCKS = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/runtime-stand-ins.md").read_text(), flags=re.DOTALL
)
PUBLIC = {name: getattr(nodeplug.testing, name) for name in nodeplug.testing.__all__}
PLUGIN = """#!/bin/sh\ncat > /dev/null; [ "$CNI_COMMAND" = ADD ] && echo '{}'; exit 0\n"""
DRIVER = """#!/bin/sh
case $1 in
init) echo '{"status": "Success", "capabilities": {"attach": false}}';;
mount) mount -t tmpfs tmpfs "$2" && echo '{"status": "Success"}';;
*) echo '{"status": "Not supported"}';;
esac
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def kubelet_root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "kubelet"
    for target in (tmp_path / "kubelet").glob("pods/*/volumes/*/*"):
        unmount(str(target), lazy=True)


def test_the_example_of_the_cni_runtime_runs(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "one", PLUGIN)
    conflist = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "one"}]}
    names = {**PUBLIC, "conflist": conflist, "cni_bin": tmp_path / "bin", "netns": "/ns"}
    exec(BLOCKS[0], names)
    assert [one.verb for one in names["runtime"].executions] == ["ADD", "DEL", "DEL"]


def test_the_example_of_the_flexvolume_caller_runs(tmp_path: Path, kubelet_root: Path) -> None:
    need("mount")
    executable(tmp_path / "plugins" / "acme~disk" / "disk", DRIVER)
    names = {**PUBLIC, "plugin_dir": tmp_path / "plugins", "kubelet_root": kubelet_root, "pod": Pod(uid="1-2")}
    exec(BLOCKS[1], names)
    assert not names["target"].exists()
