"""`install = true`: the daemon keeps the entrypoints in step with its configuration."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing.scratch_node import ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
from nodeplug import CniClaim, hookimpl

class Net:
    def __init__(self, config, host):
        self.name = host.plugin

    @hookimpl
    def claims(self):
        return [CniClaim(f"nodeplug-{self.name}")]

    @hookimpl
    def cni_add(self, request):
        raise NotImplementedError

    @hookimpl
    def cni_del(self, request):
        return None
"""
ONE = '[plugins.one]\nuses = "net:Net"\nisolation = "thread"\n'
TWO = '[plugins.two]\nuses = "net:Net"\nisolation = "thread"\n'


@pytest.fixture(scope="session")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "net.py").write_text(PLUGIN)
    return folder


@pytest.fixture
def node(tmp_path: Path, modules: Path) -> Iterator[ScratchNode]:
    supervisor, env = 'listen = ""\ninstall = true\nnative_entrypoints = false', {"PYTHONPATH": str(modules)}
    node = ScratchNode(tmp_path, ONE + TWO, supervisor=supervisor, env=env, fork=True)
    node.start()
    yield node
    node.stop()


def names(node: ScratchNode) -> set[str]:
    return {path.name for path in node.paths.cni_bin.glob("[!.]*")}  # not the compiled program


def test_daemon_installs_what_its_plugins_claim(node: ScratchNode) -> None:
    assert names(node) == {"nodeplug-one", "nodeplug-two"}


def test_plugin_that_is_no_longer_configured_loses_its_name_at_reload(node: ScratchNode) -> None:
    node.configure(ONE)
    until(lambda: names(node) == {"nodeplug-one"})


def test_plugin_that_is_refused_after_a_change_keeps_its_name(node: ScratchNode) -> None:
    node.configure(f"{ONE}{TWO}config = {{ nonsense = 1 }}\n")
    until(lambda: any("nonsense" in row["reason"] for row in node.status()["plugins"]))
    until(lambda: "configuration reloaded" in node.log)
    assert names(node) == {"nodeplug-one", "nodeplug-two"}


def test_status_of_a_running_daemon_is_shown(node: ScratchNode) -> None:
    done = node.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cni:nodeplug-two" in done.stdout


def test_plugins_of_a_running_daemon_are_running(node: ScratchNode) -> None:
    done = node.run("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("running") == 2


def test_status_says_what_is_installed_and_why(node: ScratchNode) -> None:
    chosen = node.status()["entrypoints"]
    assert chosen["kind"] in {"native", "script"}  # as this machine has a compiler or not
    assert f"entrypoints: {chosen['kind']} ({chosen['reason']})" in node.run("status").stdout
    assert f"entrypoints: {chosen['kind']} ({chosen['reason']})" in node.log


def until_installed(node: ScratchNode, kind: str) -> None:
    until(lambda: node.status()["entrypoints"]["kind"] == kind)


@pytest.mark.usefixtures("has_compiler")
def test_daemon_exchanges_what_an_earlier_one_installed(node: ScratchNode) -> None:
    for before, value, kind in (("false", "true", "native"), ("true", "false", "script")):
        node.stop()
        text = node.config_path.read_text()
        node.config_path.write_text(text.replace(f"native_entrypoints = {before}", f"native_entrypoints = {value}"))
        node.start()
        until_installed(node, kind)
