"""The end of the daemon while something hangs that its start began."""

import json
import subprocess
from pathlib import Path

from nodeplug.testing import ScratchNode

PLUGIN = """
import threading
from nodeplug import Claim, hookimpl

class Net:
    def __init__(self, config, host):
        self.host = host

    @hookimpl
    def claims(self):
        return [Claim("cni", "nodeplug-net")]

    @hookimpl
    def cni_add(self, request):
        raise NotImplementedError

    @hookimpl
    def cni_del(self, request):
        (self.host.run_dir / "hangs").touch()
        threading.Event().wait()
"""
SECTION = '[plugins.net]\nuses = "net:Net"\ndeadline = { cni_del = "10m" }\n'
CONFIG = {"cniVersion": "1.0.0", "name": "pods", "type": "nodeplug-net"}
DEL = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "", "CNI_PATH": "/opt/cni/bin"}


def test_a_replayed_del_that_hangs_does_not_keep_the_daemon_alive(short_path: Path, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(PLUGIN)
    node = ScratchNode(short_path, SECTION, supervisor='listen = ""', env={"PYTHONPATH": str(tmp_path)})
    assert node.run("install", "--script").returncode == 0
    node.paths.spool.mkdir(mode=0o700, parents=True)
    spooled = subprocess.run(
        [node.paths.cni_bin / "nodeplug-net"],
        env=DEL,
        input=json.dumps(CONFIG).encode(),
        capture_output=True,
        check=False,
    )
    assert spooled.returncode == 0
    node.start()
    assert (node.paths.run / "plugins" / "net" / "hangs").exists()
    assert node.stop() == 0
