"""A daemon that starts with wrong files goes on with what was in force last, and says so."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nodeplug.config.last_good import NAME
from nodeplug.contract.errors import PluginError
from nodeplug.exec.client import ask
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
from nodeplug import CniClaim, CniResult, hookimpl
from pydantic import BaseModel

class Plugin:
    class Config(BaseModel, extra="forbid"):
        depth: int = 0

    def __init__(self, config, host):
        self.depth, self.name = config.depth, host.plugin

    @hookimpl
    def claims(self):
        return [CniClaim(self.name)]

    @hookimpl
    def inspect(self):
        return {"depth": self.depth}

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self):
        return None
"""
GOOD = "[plugins.{name}.config]\ndepth = {depth}\n"


def section(name: str, depth: object = 1) -> str:
    return f'[plugins.{name}]\nuses = "scratch_plugin:Plugin"\nisolation = "thread"\n' + GOOD.format(
        name=name, depth=depth
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., ScratchNode]]:
    (tmp_path / "scratch_plugin.py").write_text(PLUGIN)
    root = tmp_path / "n"
    root.mkdir()
    nodes: list[ScratchNode] = []

    def make(plugins: str) -> ScratchNode:
        nodes.append(ScratchNode(root, plugins, supervisor='listen = ""', env={"PYTHONPATH": str(tmp_path)}, fork=True))
        return nodes[-1]

    yield make
    for made in nodes:
        made.stop()


@pytest.fixture
def served(node: Callable[..., ScratchNode]) -> ScratchNode:
    """A node that has served two plugins, and has ended."""
    made = node(section("a") + section("b", 2))
    made.start()
    until((made.paths.state / NAME).exists)
    made.kill()
    return made


def depths(node: ScratchNode) -> dict[str, Any]:
    """Return what each plugin says of its configuration; less while one is being exchanged."""
    names = [plugin["name"] for plugin in node.status()["plugins"] if plugin["state"] == "running"]
    found = {}
    for name in names:
        with suppress(PluginError):
            found[name] = ask(node.paths.exec_socket, "inspect", name)[name]["depth"]
    return found


def test_a_mistake_in_the_files_leaves_what_was_in_force(served: ScratchNode) -> None:
    served.configure(section("a", 5) + "[plugins.b]\ncolour = 1\n")
    served.start()
    assert depths(served) == {"a": 1, "b": 2}
    status = served.status()
    assert not status["ready"]
    assert "plugins.b.colour: unknown key" in status["reasons"]["configuration"]
    assert "the one that was in force last is" in served.log


def test_what_is_mended_is_in_force_at_once(served: ScratchNode) -> None:
    served.config_path.write_text("no TOML")
    served.start()
    assert depths(served) == {"a": 1, "b": 2}
    served.configure(section("a", 5))
    until(lambda: depths(served) == {"a": 5})
    assert served.status()["ready"]


def test_a_section_that_its_plugin_refuses_leaves_the_former_one_and_the_others_change(served: ScratchNode) -> None:
    served.configure(section("a", 5) + section("b", '"deep"'))
    served.start()
    until(lambda: depths(served) == {"a": 5, "b": 2})
    (told,) = [plugin for plugin in served.status()["plugins"] if plugin["name"] == "b"]
    assert "the one that was in force last serves" in told["reason"]
    assert "depth" in told["reason"]


def test_a_refused_section_does_not_become_the_last_good_one(served: ScratchNode) -> None:
    served.configure(section("a", 5) + section("b", '"deep"'))
    served.start()
    until(lambda: "depth = 5" in (served.paths.state / NAME).read_text())
    assert "depth = 2" in (served.paths.state / NAME).read_text()
    served.kill()
    served.start()
    until(lambda: depths(served) == {"a": 5, "b": 2})


def test_a_section_that_is_gone_is_not_brought_back(served: ScratchNode) -> None:
    served.configure(section("a", 5))
    served.start()
    assert depths(served) == {"a": 5}
    until(lambda: "plugins.b" not in (served.paths.state / NAME).read_text())


def test_only_its_owner_may_read_the_record(served: ScratchNode) -> None:
    assert (served.paths.state / NAME).stat().st_mode & 0o777 == 0o600


def test_a_first_start_with_a_mistake_is_refused_with_the_mistake(node: Callable[..., ScratchNode]) -> None:
    made = node("[plugins.a]\ncolour = 1\n")
    done = made.run("serve")
    assert done.returncode == 1
    assert "colour" in done.stderr


def test_a_damaged_record_leaves_the_mistakes_of_the_files(served: ScratchNode) -> None:
    (served.paths.state / NAME).write_bytes(b"\0")
    served.config_path.write_text("no TOML")
    done = served.run("serve")
    assert done.returncode == 1
    assert str(served.config_path) in done.stderr
