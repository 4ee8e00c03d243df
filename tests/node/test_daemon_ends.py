"""The end of the daemon while something hangs that its start began."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from nodeplug import PluginError
from nodeplug.testing import Sandbox, ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
import threading
from nodeplug import CniClaim, hookimpl

class Net:
    def __init__(self, config, host):
        self.host = host

    @hookimpl
    def claims(self):
        return [CniClaim("nodeplug-net")]

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


@pytest.mark.whole
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


HANGING = """
import threading, time
from nodeplug import CniClaim, CniResult, hookimpl

class Net:
    name = "nodeplug-net"

    def __init__(self, config, host):
        self.host = host

    @hookimpl
    def claims(self):
        return [CniClaim(self.name)]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self, request):
        pass

class Starting(Net):
    name = "nodeplug-starting"

    @hookimpl
    def start(self):
        (self.host.run_dir / "starts").touch()
        threading.Event().wait()

class Stopping(Net):
    name = "nodeplug-stopping"

    @hookimpl
    def stop(self):
        (self.host.run_dir / "stops").touch()
        while not (self.host.run_dir / "go").exists():
            time.sleep(0.01)
"""
STARTING = '[plugins.starting]\nuses = "hanging:Starting"\ndeadline = { start = "10m" }\n'
STOPPING = '[plugins.stopping]\nuses = "hanging:Stopping"\ndeadline = { stop = "10m" }\n'


def execute(node: ScratchNode, verb: str, name: str, netns: Path) -> int:
    """Execute an entrypoint; the answer is the code of its error."""
    done = subprocess.run(
        [node.paths.cni_bin / name],
        env={**DEL, "CNI_COMMAND": verb, "CNI_NETNS": str(netns)},
        input=json.dumps({**CONFIG, "type": name, "cniVersion": "1.1.0"}).encode(),
        capture_output=True,
        check=False,
    )
    return int(json.loads(done.stdout)["code"]) if done.returncode else 0


@pytest.mark.whole
def test_a_start_that_hangs_does_not_keep_the_daemon_alive(short_path: Path, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    node = ScratchNode(short_path, STARTING, env={"PYTHONPATH": str(tmp_path)})
    node.start()
    assert (node.paths.run / "plugins" / "starting" / "starts").exists()
    assert node.stop() == 0


def test_sigterm_while_the_daemon_starts_ends_it_without_waiting_for_the_start(
    short_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    node = ScratchNode(short_path, STARTING, env={"PYTHONPATH": str(tmp_path)})
    with node.log_path.open("ab") as log:
        process = subprocess.Popen(
            node.command("serve"), stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(tmp_path)}
        )
    until((node.paths.run / "plugins" / "starting" / "starts").exists)
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.whole
def test_the_socket_answers_until_the_end(short_path: Path, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    supervisor = 'listen = ""\ninstall = true'
    node = ScratchNode(short_path, STOPPING, supervisor=supervisor, env={"PYTHONPATH": str(tmp_path)})
    node.start()
    until((node.paths.cni_bin / "nodeplug-stopping").exists)  # a compiler may take longer than callers wait
    run = node.paths.run / "plugins" / "stopping"
    os.kill(node.pid, signal.SIGTERM)
    until((run / "stops").exists)
    assert node.status()["pid"] == node.pid
    with Sandbox(short_path / "netns") as sandbox:
        codes = [execute(node, verb, "nodeplug-stopping", sandbox.path) for verb in ("ADD", "DEL", "STATUS")]
    assert codes == [11, 0, 50]
    (run / "go").touch()
    assert node.stop() == 0
    with pytest.raises(PluginError):
        node.status()
    assert len(list(node.paths.spool.glob("*.frame"))) == 1, "a DEL that comes too late is kept for the next daemon"
    with node:
        until(lambda: not list(node.paths.spool.glob("*.frame")))
    (run / "go").touch()
