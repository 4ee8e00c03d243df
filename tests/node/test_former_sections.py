"""What a section has left is found by the one that has the same exclusive claim now, and by no other."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.journal import write_durably
from nodeplug.exec.client import ask
from nodeplug.testing import ScratchNode, forked
from nodeplug.testing.waiting import until

PLUGIN = """
from nodeplug import ExclusiveClaim, hookimpl

class Cards:
    def __init__(self, config, host):
        self.host, self.found = host, {}

    @hookimpl
    def claims(self):
        return [ExclusiveClaim("cards", advice="keep one")]

    @hookimpl
    def start(self):
        for former in self.host.former_sections():
            keys = [entry.key for entry in former.journal.entries()]
            self.found[former.run_dir.name] = [keys, former.state_dir.is_dir(), former.run_dir.is_dir()]
        self.host.journal.write(f"of {self.host.plugin}", phase="noted")

    @hookimpl
    def inspect(self):
        return self.found

class Other(Cards):
    @hookimpl
    def claims(self):
        return [ExclusiveClaim("other cards")]
"""


def cards(name: str) -> str:
    return f'[plugins."{name}"]\nuses = "cards:Cards"\n'


OTHER = '[plugins.other]\nuses = "cards:Other"\n'


@pytest.fixture
def node(short_path: Path, tmp_path: Path) -> Iterator[ScratchNode]:
    (tmp_path / "cards.py").write_text(PLUGIN)
    env = {"PYTHONPATH": os.pathsep.join([*forked.search_path(), str(tmp_path)])}
    made = ScratchNode(short_path, cards("first") + OTHER, env=env, fork=True)
    yield made
    made.stop()


def found(node: ScratchNode, name: str) -> Any:
    until(lambda: {"name": name, "state": "running"}.items() <= _plugin(node, name).items())
    return ask(node.paths.exec_socket, "inspect", name)[name]


def _plugin(node: ScratchNode, name: str) -> dict[str, Any]:
    return next((one for one in node.status()["plugins"] if one["name"] == name), {})


@pytest.mark.parametrize("how", ["reload", "restart"])
def test_a_section_that_is_renamed_finds_what_it_left_and_nothing_of_plugins_that_run(
    node: ScratchNode, how: str
) -> None:
    node.start()
    assert found(node, "first") == {}
    (node.paths.journal / "flexvolume").mkdir()
    write_durably(node.paths.journal / "no-folder", b"")
    if how == "restart":
        node.kill()
    node.configure(cards("second one") + OTHER)
    if how == "restart":
        node.start()
    assert found(node, "second one") == {"first": [["of first"], True, True]}


def test_what_a_refused_or_disabled_section_left_is_found(node: ScratchNode) -> None:
    node.configure(cards("second one"))
    node.start()
    found(node, "second one")
    node.configure(OTHER)
    until(lambda: "second one" not in {one["name"] for one in node.status()["plugins"]})
    node.configure(cards("first") + cards("second one") + OTHER + "enabled = false\n")
    assert found(node, "first") == {"second%20one": [["of second one"], True, True]}
    assert _plugin(node, "second one")["reason"].endswith("it comes first in the configuration; keep one")


def test_after_a_reboot_the_run_folder_is_not_there(node: ScratchNode) -> None:
    node.start()
    found(node, "first")
    node.stop()
    for folder in ("first", "other"):
        (node.paths.run / "plugins" / folder).rmdir()
    node.configure(cards("third"))
    node.start()
    assert found(node, "third")["first"] == [["of first"], True, False]
