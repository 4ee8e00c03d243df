"""A filesystem that is frozen under the state folder stops nobody who does not need it."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import ScratchNode

PLUGIN = """
from nodeplug import Claim, CniResult, hookimpl

class Net:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [Claim("cni", "nodeplug-net")]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self, request):
        pass
"""


@pytest.fixture
def disk(tmp_path: Path, short_path: Path) -> Iterator[Path]:
    """A filesystem of its own at the state folder of the node."""
    for program in ("mkfs.ext4", "fsfreeze"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    image, folder = tmp_path / "image", short_path / "var/lib/nodeplug"
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no loop mount here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def node(disk: Path, short_path: Path, tmp_path: Path) -> Iterator[ScratchNode]:
    (tmp_path / "net.py").write_text(PLUGIN)
    supervisor = 'listen = ""\ninstall = true\n'
    made = ScratchNode(
        short_path, '[plugins.net]\nuses = "net:Net"\n', supervisor=supervisor, env={"PYTHONPATH": str(tmp_path)}
    )
    made.start()
    yield made
    subprocess.run(["fsfreeze", "-u", disk], capture_output=True, check=False)
    made.kill()


def test_control_and_status_are_answered_while_the_disk_of_the_state_folder_is_frozen(
    node: ScratchNode, disk: Path
) -> None:
    subprocess.run(["fsfreeze", "-f", disk], check=True)
    end = time.monotonic() + 60
    while "state folder" not in node.status()["reasons"]:
        assert time.monotonic() < end
        time.sleep(0.5)
    done = subprocess.run(
        [node.paths.cni_bin / "nodeplug-net"],
        env={"CNI_COMMAND": "STATUS", "CNI_PATH": str(node.paths.cni_bin)},
        input=json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-net"}).encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    subprocess.run(["fsfreeze", "-u", disk], check=True)
    while not node.status()["ready"]:
        assert time.monotonic() < end
        time.sleep(0.5)
