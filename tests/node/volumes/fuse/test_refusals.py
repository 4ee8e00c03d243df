"""What fuse refuses, and what it says."""

from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, volumes

from nodeplug import NotReady

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


def test_a_program_that_does_not_start_says_why_and_leaves_nothing(
    make_node: Any, make_plugin: Any, area: Path
) -> None:
    plugin = make_plugin(broken={"command": ["sh", "-c", "echo no such bucket >&2; exit 3", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {})
    assert "program 'broken' ended with status 3: no such bucket" in answer["message"]
    assert (node.mounted, volumes(plugin)) == ([], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_program_that_never_answers_is_ended(make_node: Any, make_plugin: Any) -> None:
    plugin = make_plugin(slow={"command": ["sh", "-c", "sleep 1000", "{mountpoint}"], "start_timeout": "500ms"})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {})
    assert "program 'slow' has not answered 0.5 s after its start" in answer["message"]
    assert (node.mounted, volumes(plugin)) == ([], [])


def test_a_program_that_is_not_installed_is_told(make_node: Any, make_plugin: Any) -> None:
    plugin = make_plugin(none={"command": ["no-such-program", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    assert "no-such-program cannot be executed" in node.mount(DRIVER, node.target("a"), {})["message"]
    with pytest.raises(NotReady, match="programs are missing on this node: no-such-program"):
        plugin.health()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "../etc"}, "option folder is '../etc'; it has to match '[a-z]+'"),
        ({"folder": ""}, "it has to match"),
        ({"o": "allow_root"}, "program 'files' has no option 'o'; it has folder"),
        ({"program": "sh"}, "option program is 'sh'; this node has: files"),
    ],
)
def test_a_pod_chooses_only_what_its_program_declares(
    node: Any, target: Path, options: dict[str, str], message: str
) -> None:
    assert message in node.mount(DRIVER, target, options)["message"]
    assert node.mounted == []
