"""`nodeplug extender`: one command beside a kube-scheduler, without root."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.acted_api import ActedApi
from tests.node.extender.test_gpu_extender import gpu_node, wanting
from tests.node.extender.test_gpu_extender_binds import put_node, put_pod

from nodeplug.config import load
from nodeplug.exec.client import ask
from nodeplug.testing import Scheduler
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
ENV = {**os.environ, "COLUMNS": "200"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "nodeplug", "extender", *words]


@pytest.fixture
def api() -> Iterator[ActedApi]:
    with ActedApi() as server:
        put_node(server, gpu_node("a", 10))
        yield server


@pytest.fixture
def running(api: ActedApi, short_path: Path) -> Iterator[Path]:
    """Run it, and return its folder."""
    folder = short_path / "extender"
    (short_path / "kubeconfig").write_text(api.kubeconfig)
    words = ["--listen", "127.0.0.1:0", "--kubeconfig", str(short_path / "kubeconfig"), "--folder", str(folder)]
    with (short_path / "log").open("wb") as log:
        process = subprocess.Popen(command(*words), stdout=log, stderr=log, env=ENV)
    until(lambda: followed(folder), found=(short_path / "log").read_text)
    yield folder
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, (short_path / "log").read_text()


def status(folder: Path) -> dict[str, Any]:
    return ask(load(folder / "nodeplug.toml", folder).supervisor.paths.exec_socket, "status")


def followed(folder: Path) -> bool:
    try:
        found = status(folder)["extender"]
    except Exception:  # it is about to start
        return False
    return bool(found["listens"] and found["cluster"]["nodes"] and found["cluster"]["pods_bound"] is not None)


@pytest.mark.whole
def test_one_command_places_and_binds_pods(api: ActedApi, running: Path) -> None:
    told = status(running)
    assert (told["ready"], told["reasons"]) == (True, {})
    with Scheduler(f"{told['extender']['address']}/gpu-mem") as scheduler:
        one = wanting("one", 8)
        put_pod(api, one)
        assert scheduler.schedule(one, ["a"]) == "a"
        assert api.bound == ["one to a"]
        assert not scheduler.filter(wanting("two", 8), ["a"]).nodes


@pytest.mark.whole
def test_it_touches_nothing_of_the_node_but_its_folder(running: Path) -> None:
    found = {path.relative_to(running.parent).parts[0] for path in running.parent.rglob("*")}
    assert found == {"extender", "kubeconfig", "log"}
    assert (running.stat().st_mode & 0o777) == 0o700
    paths = load(running / "nodeplug.toml", running).supervisor.paths
    assert not any(path.exists() for path in (paths.cni_bin, paths.cni_conf, paths.device_plugins))


def test_each_resource_is_served_at_its_own_path() -> None:
    words = ["--resource", "example.com/mem", "--resource", "example.com/cores", "--score", "spread", "--print"]
    done = subprocess.run(command(*words), capture_output=True, text=True, check=True)
    assert '[plugins."mem".config]\nextender = "mem"\nresource = "example.com/mem"\nscore = "spread"' in done.stdout
    assert '[plugins."cores".config]' in done.stdout


def test_resources_of_one_path_are_refused_and_it_is_said_what_to_do() -> None:
    words = ["--resource", "a.example/mem", "--resource", "b.example/mem", "--print"]
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a.example/mem and b.example/mem would both be served at /mem; run an extender for each" in done.stderr


@pytest.mark.whole
def test_what_the_daemon_refuses_is_refused(short_path: Path) -> None:
    words = ["--listen", "0.0.0.0:9810", "--folder", str(short_path / "e")]
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is reached by others, and whoever asks may have pods bound" in done.stderr


def test_a_folder_that_cannot_be_written_is_named(short_path: Path) -> None:
    (short_path / "file").write_text(json.dumps({}))
    done = subprocess.run(
        command("--folder", str(short_path / "file" / "e")), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "--folder names a folder that may be written" in done.stderr
