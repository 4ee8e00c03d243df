"""Network configuration lists: which version is installed for whom, which a runtime takes, and what it then needs."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodeplug.install.conflists import OLD, choose
from nodeplug.install.needs import unmet
from nodeplug.install.runtimes import Runtime, find
from nodeplug.testing.scratch_node import ScratchNode

pytestmark = pytest.mark.unprivileged

LIST = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "nodeplug-bridge"}]}
CONTAINERD, CRIO = "run/containerd/containerd.sock", "run/crio/crio.sock"
PLUGINS = '[plugins.bridge]\nisolation = "thread"\n'


@contextmanager
def runtime(path: Path, name: str, version: str) -> Iterator[None]:
    """Answer Version of CRI as a runtime does."""
    fields = enumerate(("0.1.0", name, version, "v1"), start=1)
    answer = b"".join(bytes([number << 3 | 2, len(text)]) + text.encode() for number, text in fields)
    handler: Any = grpc.unary_unary_rpc_method_handler(lambda *_: answer)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    service = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Version": handler})
    server.add_generic_rpc_handlers((service,))
    path.parent.mkdir(parents=True, exist_ok=True)
    server.add_insecure_port(f"unix://{path}")
    server.start()
    yield
    server.stop(None).wait()


@pytest.fixture
def node(short_path: Path) -> ScratchNode:
    return ScratchNode(short_path, PLUGINS)


def put_plugin(node: ScratchNode, name: str, *versions: str) -> Path:
    path = node.paths.cni_bin / name
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = json.dumps({"cniVersion": versions[-1], "supportedVersions": versions}) if versions else ""
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def put_list(node: ScratchNode, name: str, **changes: Any) -> Path:
    path = node.root / name
    path.write_text(json.dumps({**LIST, **changes}))
    return path


def version_in(node: ScratchNode, name: str) -> str:
    return str(json.loads((node.paths.cni_conf / name).read_bytes())["cniVersion"])


# --- the version --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "name", "version", "chosen"),
    [
        (CONTAINERD, "containerd", "v2.3.4", "1.1.0"),
        pytest.param(CONTAINERD, "containerd", "2.0.0-rc.1", "1.1.0", marks=pytest.mark.whole),
        pytest.param(CONTAINERD, "containerd", "1.7.27", "1.0.0", marks=pytest.mark.whole),
        (CONTAINERD, "containerd", "1.6.20~ds1", "1.0.0"),
        (CONTAINERD, "containerd", "unknown", "1.0.0"),
        (CRIO, "cri-o", "1.37.0", "1.1.0"),
        (CRIO, "cri-o", "1.28.3", "1.0.0"),
    ],
)
def test_a_list_is_installed_in_the_version_that_the_runtime_takes_and_the_choice_is_told(
    node: ScratchNode, place: str, name: str, version: str, chosen: str
) -> None:
    with runtime(node.root / place, name, version):
        done = node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    assert (done.returncode, version_in(node, "10-pods.conflist")) == (0, chosen)
    assert f"cniVersion {chosen}, " in done.stdout
    assert name in done.stdout


@pytest.mark.parametrize("written", ["1.0.0", "1.1.0"])
def test_without_a_runtime_a_list_keeps_its_version(node: ScratchNode, written: str) -> None:
    put_list(node, "10-pods.conflist", cniVersion=written)
    done = node.run("install", "--script", "--conflist", str(node.root / "10-pods.conflist"))
    assert version_in(node, "10-pods.conflist") == written
    assert "no container runtime was found" in done.stdout


def test_of_two_runtimes_the_older_decides(node: ScratchNode) -> None:
    with (
        runtime(node.root / CONTAINERD, "containerd", "1.7.0"),
        runtime(node.root / CRIO, "cri-o", "1.37.0"),
    ):
        assert [str(one).split(" (")[0] for one in find(node.paths)] == ["containerd 1.7", "cri-o 1.37"]
        chosen, _ = choose("x", json.dumps(LIST).encode(), node.paths, ["nodeplug-bridge"])
    assert json.loads(chosen)["cniVersion"] == OLD


def test_a_runtime_that_does_not_answer_is_of_unknown_version(node: ScratchNode) -> None:
    path = node.root / CONTAINERD
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert find(node.paths) == [Runtime("containerd", (0, 0), str(path))]
    chosen, why = choose("x", json.dumps(LIST | {"cniVersion": "1.1.0"}).encode(), node.paths, ["nodeplug-bridge"])
    assert json.loads(chosen)["cniVersion"] == OLD
    assert f"which every release takes: containerd does not tell its version ({path})" in why


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """Leave a socket at which nobody answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    yield


@pytest.fixture
def chain(node: ScratchNode) -> str:
    """A list that is installed in 1.1.0 for a containerd that took it."""
    path = str(put_list(node, "10-pods.conflist"))
    with runtime(node.root / CONTAINERD, "containerd", "v2.3.4"):
        node.run("install", "--script", "--conflist", path)
    return path


def test_a_runtime_that_is_silent_for_a_moment_does_not_lower_an_installed_version(
    node: ScratchNode, chain: str
) -> None:
    with silent(node.root / CONTAINERD):
        done = node.run("install", "--script", "--conflist", chain)
    assert version_in(node, "10-pods.conflist") == "1.1.0"
    assert "cniVersion 1.1.0, as it is installed: containerd does not tell its version" in done.stdout


def test_beside_a_silent_runtime_an_old_one_still_decides(node: ScratchNode, chain: str) -> None:
    with silent(node.root / CONTAINERD), runtime(node.root / CRIO, "cri-o", "1.20.0"):
        node.run("install", "--script", "--conflist", chain)
    assert version_in(node, "10-pods.conflist") == "1.0.0"


@pytest.mark.usefixtures("chain")
def test_while_the_runtime_is_silent_an_old_plugin_of_the_list_still_decides(node: ScratchNode) -> None:
    put_plugin(node, "portmap", "1.0.0")
    longer = put_list(node, "10-pods.conflist", plugins=[{"type": "nodeplug-bridge"}, {"type": "portmap"}])
    with silent(node.root / CONTAINERD):
        node.run("install", "--script", "--conflist", str(longer))
    assert version_in(node, "10-pods.conflist") == "1.0.0"


@pytest.mark.parametrize("installed", [pytest.param("0.3.1", marks=pytest.mark.whole), "1.0.1"])
def test_an_installed_version_that_is_never_chosen_is_not_kept_for_a_silent_runtime(
    node: ScratchNode, installed: str
) -> None:
    path = str(put_list(node, "10-pods.conflist", cniVersion=installed))
    node.run("install", "--script", "--cni-version", "file", "--conflist", path)
    assert version_in(node, "10-pods.conflist") == installed
    with silent(node.root / CONTAINERD):
        node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    assert version_in(node, "10-pods.conflist") == "1.0.0"


@pytest.mark.parametrize(("known", "chosen"), [(("1.0.0",), "1.0.0"), (("1.0.0", "1.1.0"), "1.1.0"), ((), "1.0.0")])
def test_a_plugin_of_the_list_that_does_not_know_the_new_version_decides(
    node: ScratchNode, known: tuple[str, ...], chosen: str
) -> None:
    put_plugin(node, "portmap", *known)
    chain = put_list(node, "10-pods.conflist", plugins=[{"type": "nodeplug-bridge"}, {"type": "portmap"}])
    with runtime(node.root / CONTAINERD, "containerd", "v2.3.4"):
        node.run("install", "--script", "--conflist", str(chain))
    assert version_in(node, "10-pods.conflist") == chosen


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [("1.1.0", "1.1.0"), pytest.param("1.0.0", "1.0.0", marks=pytest.mark.whole), ("file", "0.4.0")],
)
def test_an_option_decides_instead(node: ScratchNode, wanted: str, chosen: str) -> None:
    path = put_list(node, "10-pods.conflist", cniVersion="0.4.0")
    node.run("install", "--script", "--cni-version", wanted, "--conflist", str(path))
    assert version_in(node, "10-pods.conflist") == chosen


def test_a_list_of_an_older_version_is_meant_so(node: ScratchNode) -> None:
    with runtime(node.root / CONTAINERD, "containerd", "v2.3.4"):
        node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist", cniVersion="0.4.0")))
    assert version_in(node, "10-pods.conflist") == "0.4.0"


# --- the name -----------------------------------------------------------------------------------------------------


def test_a_list_under_a_new_name_takes_the_place_of_the_former_one(node: ScratchNode) -> None:
    for name in ("10-pods.conflist", "20-pods.conflist"):
        node.run("install", "--script", "--conflist", str(put_list(node, name)))
    assert [path.name for path in node.paths.cni_conf.iterdir()] == ["20-pods.conflist"]


def test_an_installation_without_lists_keeps_them(node: ScratchNode) -> None:
    node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    node.run("install", "--script")
    assert [path.name for path in node.paths.cni_conf.iterdir()] == ["10-pods.conflist"]


def test_a_list_of_somebody_else_that_comes_first_is_warned_about_and_stays(node: ScratchNode) -> None:
    node.paths.cni_conf.mkdir(parents=True)
    (node.paths.cni_conf / "05-other.conf").write_text("{}")
    done = node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    assert done.returncode == 0
    assert "05-other.conf comes before 10-pods.conflist" in done.stderr
    assert sorted(path.name for path in node.paths.cni_conf.iterdir()) == ["05-other.conf", "10-pods.conflist"]


# --- what the runtime will need -----------------------------------------------------------------------------------


@pytest.fixture
def told(node: ScratchNode) -> Callable[..., list[str]]:
    node.paths.cni_conf.mkdir(parents=True)
    (node.paths.cni_conf / "10-pods.conflist").write_text(json.dumps(LIST))
    return lambda *claims: unmet(node.paths, claims)


def listen(node: ScratchNode, place: str = CONTAINERD) -> None:
    path = node.root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_a_plugin_of_our_list_without_executable_is_told(told: Callable[..., list[str]]) -> None:
    (problem,) = told("nodeplug-bridge")
    assert "no executable" in problem
    assert "nodeplug install" in problem


@pytest.mark.parametrize("place", [CONTAINERD, CRIO])
def test_a_runtime_without_loopback_is_told(node: ScratchNode, told: Callable[..., list[str]], place: str) -> None:
    put_plugin(node, "nodeplug-bridge", "1.1.0")
    assert told("nodeplug-bridge") == []
    listen(node, place)
    (problem,) = told("nodeplug-bridge")
    assert "loopback for each pod" in problem
    assert "enable [plugins.loopback]" in problem
    put_plugin(node, "loopback", "1.0.0")
    assert told("nodeplug-bridge") == []


def test_networks_of_others_are_not_our_business(node: ScratchNode, told: Callable[..., list[str]]) -> None:
    listen(node)
    assert told("another-claim") == []
    (node.paths.cni_conf / "00-first.conflist").write_text(json.dumps({**LIST, "plugins": [{"type": "flannel"}]}))
    assert told("nodeplug-bridge") == []


@pytest.mark.whole
def test_a_node_whose_runtime_lacks_loopback_is_not_ready_and_says_why(node: ScratchNode) -> None:
    listen(node)
    done = node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    assert "calls" in done.stderr
    with node:
        status = node.status()
        assert "loopback for each pod" in status["reasons"]["entrypoints"]
        put_plugin(node, "loopback", "1.0.0")
        assert node.status()["ready"]


def test_the_shipped_configuration_serves_loopback_where_none_is(tmp_path: Path) -> None:
    shipped = (Path(__file__).parents[3] / "configs/plugins.d/net.toml").read_text()
    node = ScratchNode(tmp_path, shipped)
    listen(node)
    done = node.run("install", "--script", "--conflist", str(put_list(node, "10-pods.conflist")))
    assert (done.returncode, done.stderr) == (0, "")
    assert os.access(node.paths.cni_bin / "loopback", os.X_OK)
