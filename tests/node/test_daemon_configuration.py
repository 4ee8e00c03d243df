"""Whatever happens to the files of a running daemon, it goes on with what it has, and says why."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
from nodeplug import CniClaim, CniResult, hookimpl
from pydantic import BaseModel

class Plugin:
    class Config(BaseModel, extra="forbid"):
        claim: str = "net"
        depth: int = 0

    def __init__(self, config, host):
        self.config = config

    @hookimpl
    def claims(self):
        return [CniClaim(self.config.claim)]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self):
        return None
"""


def section(name: str, claim: str = "", more: str = "") -> str:
    head = f'[plugins.{name}]\nuses = "scratch_plugin:Plugin"\n'
    return f'{head}[plugins.{name}.config]\nclaim = "{claim or name}"\n{more}\n'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., ScratchNode]]:
    (tmp_path / "scratch_plugin.py").write_text(PLUGIN)
    root = tmp_path / "n"
    root.mkdir()
    nodes: list[ScratchNode] = []

    def make(plugins: str = "", supervisor: str = 'listen = ""', **drop_ins: str) -> ScratchNode:
        nodes.append(ScratchNode(root, plugins, supervisor=supervisor, env={"PYTHONPATH": str(tmp_path)}, fork=True))
        for name, text in drop_ins.items():
            drop_in(nodes[-1], name, text)
        nodes[-1].start()
        return nodes[-1]

    yield make
    for made in nodes:
        made.stop()


def drop_in(node: ScratchNode, name: str, text: str) -> None:
    folder = node.config_path.parent / "plugins.d"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.new").write_text(text)
    (folder / f"{name}.new").rename(folder / f"{name}.toml")


def states(node: ScratchNode) -> dict[str, str]:
    return {plugin["name"]: plugin["state"] for plugin in node.status()["plugins"]}


def reason(node: ScratchNode) -> str:
    told: dict[str, Any] = node.status()["reasons"]
    return str(told.get("configuration", ""))


def test_a_drop_in_folder_that_vanishes_keeps_every_plugin_and_says_so(node: Callable[..., ScratchNode]) -> None:
    scratch = node(a=section("a"), b=section("b"))
    folder = scratch.config_path.parent / "plugins.d"
    folder.rename(folder.with_name("x"))
    until(lambda: "the drop-in folder is gone" in reason(scratch))
    assert states(scratch) == {"a": "running", "b": "running"}
    folder.with_name("x").rename(folder)
    until(lambda: not reason(scratch))
    assert states(scratch) == {"a": "running", "b": "running"}


def test_a_changed_drop_in_folder_acts_after_a_restart(node: Callable[..., ScratchNode]) -> None:
    scratch = node(a=section("a"))
    other = scratch.config_path.parent / "other"
    other.mkdir()
    (other / "b.toml").write_text(section("b"))
    head = 'version = 1\n[supervisor]\nplugin_user = "root"\nlisten = ""\n'
    scratch.config_path.write_text(f'{head}drop_in_dir = "other"\n')
    until(lambda: "takes effect when the daemon is restarted" in scratch.log)
    until(lambda: "configuration reloaded" in scratch.log)
    assert states(scratch) == {"a": "running"}
    scratch.stop()
    scratch.start()
    assert states(scratch) == {"b": "running"}


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


def deep(path: Path) -> None:
    path.write_text(f"version = 1\na = {'[' * 20000}{']' * 20000}\n")


def long_number(path: Path) -> None:
    path.write_text(f"version = 1\na = {'9' * 5000}\n")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


@pytest.mark.parametrize("spoil", [fifo, huge, deep, long_number, binary])
def test_no_file_ends_or_freezes_the_running_daemon(
    node: Callable[..., ScratchNode], spoil: Callable[[Path], None]
) -> None:
    scratch = node(section("kept"))
    spoil(scratch.config_path)
    until(lambda: str(scratch.config_path) in reason(scratch))
    assert states(scratch) == {"kept": "running"}
    scratch.config_path.unlink()
    scratch.configure(section("kept") + section("new"))
    until(lambda: states(scratch) == {"kept": "running", "new": "running"})
    assert "Traceback" not in scratch.log


@pytest.mark.parametrize("spoil", [fifo, huge, deep, long_number, binary])
def test_a_check_of_such_a_file_is_one_sentence(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    scratch = ScratchNode(tmp_path, "")
    spoil(scratch.config_path)
    done = scratch.run("check-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {scratch.config_path}")
    assert "Traceback" not in done.stderr


def reloads(node: ScratchNode, port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("nodeplug_reloads_total{"):
            found[line.split('"')[1]] = float(line.rpartition(" ")[2])
    return found


def settle() -> None:
    """Let several looks at the files follow a change."""
    time.sleep(2)


def test_a_refused_reload_is_counted_and_logged_once(node: Callable[..., ScratchNode], free_port: int) -> None:
    scratch = node(section("a"), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.configure(section("a", more="nonsense = 1"))
    until(lambda: any("nonsense" in plugin["reason"] for plugin in scratch.status()["plugins"]))
    settle()
    assert reloads(scratch, free_port) == {"refused": 1}
    assert scratch.log.count("plugin a is refused") == 1
    assert scratch.log.count("configuration reloaded, refused: changed a; not in force: a") == 1


def test_a_configuration_with_a_mistake_is_counted_and_logged_once(
    node: Callable[..., ScratchNode], free_port: int
) -> None:
    scratch = node(section("a"), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.configure("[plugins.a]\ncolour = 1\n")
    until(lambda: "colour" in reason(scratch))
    settle()
    assert reloads(scratch, free_port) == {"refused": 1}
    assert scratch.log.count("the running configuration stays") == 1


def test_a_reload_that_is_in_force_in_part_is_counted_so(node: Callable[..., ScratchNode], free_port: int) -> None:
    scratch = node(section("a"), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.configure(section("a", more="nonsense = 1") + section("b"))
    until(lambda: states(scratch).get("b") == "running")
    until(lambda: reloads(scratch, free_port))
    assert reloads(scratch, free_port) == {"partly refused": 1}


def test_a_good_reload_is_counted_once_as_applied(node: Callable[..., ScratchNode], free_port: int) -> None:
    scratch = node(section("a"), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.configure(section("a") + section("b"))
    until(lambda: states(scratch).get("b") == "running")
    settle()
    assert reloads(scratch, free_port) == {"applied": 1}


def test_a_refusal_names_file_line_and_key_in_log_and_readiness(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"), z=section("z"))
    path = scratch.config_path.parent / "plugins.d" / "z.toml"
    drop_in(scratch, "z", section("z", more="\ndept = 1"))
    told = f'{path}:6: plugins.z.config.dept: unknown key; did you mean "depth"? allowed: claim, depth'
    until(lambda: told in str(scratch.status()["reasons"].get("z")))
    assert told in scratch.log


def test_status_finds_the_daemon_although_the_main_file_is_broken(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"), supervisor='listen = ""\nexec_socket = "/run/elsewhere.sock"')
    for broken in ("[plugins.a\n", "x = = 1\n", "[plugins.a]\ncolour = 1\n"):
        scratch.configure(broken)
        done = scratch.run("status")
        assert "NOT READY" in done.stdout or "ready" in done.stdout
        assert "`nodeplug check-config` tells them" in done.stderr
        assert '"a"' in scratch.run("plugins", "--json").stdout


def test_status_without_a_daemon_tells_the_mistakes_too(tmp_path: Path) -> None:
    scratch = ScratchNode(tmp_path, "x = = 1\n")
    done = scratch.run("status")
    assert done.returncode == 1
    assert f"{scratch.config_path}:5: is not TOML" in done.stderr
    assert "the daemon does not listen at" in done.stderr


@pytest.fixture
def installed(tmp_path: Path) -> ScratchNode:
    (tmp_path / "scratch_plugin.py").write_text(PLUGIN)
    scratch = ScratchNode(tmp_path, section("a") + section("b"), env={"PYTHONPATH": str(tmp_path)})
    assert scratch.run("install", "--script").returncode == 0
    assert names(scratch) == {"a", "b"}
    return scratch


def names(node: ScratchNode) -> set[str]:
    return {path.name for path in node.paths.cni_bin.glob("[!.]*")}


@pytest.mark.whole
def test_install_of_no_plugins_removes_nothing_and_names_what_it_kept(installed: ScratchNode) -> None:
    installed.configure("")
    done = installed.run("install", "--script")
    assert done.returncode == 1
    assert str(installed.paths.cni_bin / "a") in done.stderr
    assert "--remove-all" in done.stderr
    assert names(installed) == {"a", "b"}


@pytest.mark.whole
def test_install_of_no_plugins_removes_everything_when_told_so(installed: ScratchNode) -> None:
    installed.configure("")
    assert installed.run("install", "--script", "--remove-all").returncode == 0
    assert names(installed) == set()


@pytest.mark.whole
def test_install_with_a_typo_in_the_drop_in_folder_removes_nothing(installed: ScratchNode) -> None:
    installed.config_path.write_text('version = 1\n[supervisor]\ndrop_in_dir = "plugin.d"\n')
    done = installed.run("install", "--script")
    assert done.returncode == 1
    assert f"{installed.config_path}:3: supervisor.drop_in_dir: the folder" in done.stderr
    assert names(installed) == {"a", "b"}


def test_a_daemon_that_installs_removes_nothing_without_plugins(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"), supervisor='listen = ""\ninstall = true\nnative_entrypoints = false')
    until(lambda: names(scratch) == {"a"})
    scratch.configure("")
    until(lambda: "entrypoints stay" in scratch.log)
    until(lambda: "configuration reloaded: removed a" in scratch.log)
    assert names(scratch) == {"a"}


def ready(port: int) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.whole
def test_a_node_that_lost_its_unnamed_drop_in_folder_is_not_ready_while_entrypoints_are_installed(
    node: Callable[..., ScratchNode], free_port: int
) -> None:
    scratch = node(supervisor=f'listen = "127.0.0.1:{free_port}"', a=section("a"), b=section("b"))
    assert scratch.run("install", "--script").returncode == 0
    scratch.stop()
    folder = scratch.config_path.parent / "plugins.d"
    folder.rename(folder.with_name("x"))
    scratch.start()
    until(lambda: ready(free_port)[0] == 503)  # it serves and has looked
    told = scratch.status()["reasons"]
    assert list(told) == ["entrypoints"]
    assert f"are installed (2, such as {scratch.paths.cni_bin / 'a'})" in told["entrypoints"]
    assert "no plugin is enabled" in told["entrypoints"]
    assert f"{folder}, which does not exist" in told["entrypoints"]
    assert "`nodeplug install --remove-all`" in told["entrypoints"]
    until(lambda: told["entrypoints"] in ready(free_port)[1])
    assert scratch.run("status").returncode == 3
    folder.with_name("x").rename(folder)
    until(lambda: ready(free_port)[0] == 200)
    assert states(scratch) == {"a": "running", "b": "running"}


def test_a_node_that_loses_its_last_plugin_is_not_ready_until_its_entrypoints_are_removed(
    node: Callable[..., ScratchNode],
) -> None:
    scratch = node(section("a"))
    assert scratch.run("install", "--script").returncode == 0
    scratch.configure("[plugins.a]\nuses = 'scratch_plugin:Plugin'\nenabled = false\n")
    until(lambda: "no plugin is enabled" in scratch.status()["reasons"].get("entrypoints", ""))
    assert scratch.run("install", "--script", "--remove-all").returncode == 0
    until(lambda: bool(scratch.status()["ready"]))


def test_a_node_without_plugins_and_without_entrypoints_is_ready(
    node: Callable[..., ScratchNode], free_port: int
) -> None:
    scratch = node(supervisor=f'listen = "127.0.0.1:{free_port}"')
    until(lambda: ready(free_port)[0] == 200)
    assert scratch.status()["reasons"] == {}


def serving(node: ScratchNode) -> dict[str, str]:
    """Return who serves the claim "net", and who is refused."""
    return {plugin["name"]: plugin["state"] for plugin in node.status()["plugins"]}


def test_of_two_claimants_the_first_in_the_configuration_serves_after_a_reload_as_after_a_restart(
    node: Callable[..., ScratchNode],
) -> None:
    scratch = node(b=section("b", claim="net"))
    drop_in(scratch, "a", section("a", claim="net"))
    until(lambda: serving(scratch) == {"a": "running", "b": "refused"})
    told = "which plugin 'a' of module scratch_plugin owns: it comes first in the configuration"
    assert told in scratch.status()["reasons"]["b"]
    assert told in scratch.log
    scratch.stop()
    scratch.start()
    until(lambda: serving(scratch) == {"a": "running", "b": "refused"})


def test_a_later_claimant_is_refused_after_a_reload_as_after_a_restart(node: Callable[..., ScratchNode]) -> None:
    scratch = node(a=section("a", claim="net"))
    drop_in(scratch, "b", section("b", claim="net"))
    until(lambda: serving(scratch) == {"a": "running", "b": "refused"})
    scratch.stop()
    scratch.start()
    until(lambda: serving(scratch) == {"a": "running", "b": "refused"})


def test_a_refused_claimant_serves_once_the_first_is_gone(node: Callable[..., ScratchNode]) -> None:
    scratch = node(a=section("a", claim="net"), b=section("b", claim="net"))
    until(lambda: serving(scratch) == {"a": "running", "b": "refused"})
    (scratch.config_path.parent / "plugins.d" / "a.toml").unlink()
    until(lambda: serving(scratch) == {"b": "running"})


def test_a_change_of_the_daemons_own_table_acts_after_a_restart(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    head = 'version = 1\n[supervisor]\nplugin_user = "root"\nlisten = ""\nlog_level = "error"\ninstall = true\n'
    head += "native_entrypoints = false\n"
    scratch.config_path.write_text(head + section("a") + section("b"))
    until(lambda: states(scratch) == {"a": "running", "b": "running"})
    until(lambda: "configuration reloaded: added b" in scratch.log)
    assert not scratch.paths.cni_bin.exists()
    scratch.stop()
    scratch.start()
    until(lambda: names(scratch) == {"a", "b"})
