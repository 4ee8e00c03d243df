"""cnitool, the one consumer that calls every verb: ADD, CHECK, STATUS, GC and DEL of cniVersion 1.1.0.

It is libcni as runtimes use it, with its cache; only the moment of each call is a test's.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import PrivateNode

from nodeplug.contract.errors import PluginError
from nodeplug.testing import ScratchNode

PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"


@dataclass(frozen=True)
class Tool:
    """cnitool on a private node with a daemon, and a pod's namespace there."""

    node: PrivateNode
    daemon: ScratchNode
    program: Path
    plugins: Path
    netns: str = "/run/netns/pod"

    def call(self, verb: str) -> str:
        path = os.pathsep.join(map(str, (self.daemon.paths.cni_bin, self.plugins)))
        environment = (f"CNI_PATH={path}", f"NETCONFPATH={self.daemon.paths.cni_conf}")
        return self.node.run("env", *environment, str(self.program), verb, "nodeplug", self.netns)

    def inside(self, *command: str) -> Any:
        return json.loads(self.node.run("ip", "-n", "pod", "-j", *command) or "[]")

    @property
    def watched(self) -> tuple[Path, Path]:
        return self.node.folder / "var", self.daemon.paths.run


@pytest.fixture
def tool(private_node: PrivateNode, short_path: Path, consumer: Callable[[str], Path]) -> Iterator[Tool]:
    """The published list as 1.1.0, with a reference plugin behind ours; a first life has made the bridge."""
    conflist = json.loads(PUBLISHED.read_text()) | {"cniVersion": "1.1.0"}
    conflist["plugins"].append({"type": "tuning", "mtu": 1300})
    (short_path / PUBLISHED.name).write_text(json.dumps(conflist))
    program, plugins = consumer("tools") / "cnitool", consumer("cni")
    with ScratchNode(private_node.folder, "[plugins.bridge]\n", beside=private_node.pid, fork=True) as daemon:
        installed = daemon.run("install", "--conflist", str(short_path / PUBLISHED.name))
        assert installed.returncode == 0, installed.stderr
        private_node.run("ip", "netns", "add", "pod")
        tool = Tool(private_node, daemon, program, plugins)
        tool.call("add")
        tool.call("del")
        yield tool


def test_each_verb_succeeds_and_the_life_leaves_nothing(tool: Tool) -> None:
    before = tool.node.inventory(*tool.watched)
    result = json.loads(tool.call("add"))
    assert result["cniVersion"] == "1.1.0"
    assert result["ips"][0]["address"].startswith("10.88.")
    assert tool.inside("link", "show", "eth0")[0]["mtu"] == 1300
    for verb in ("check", "status", "del", "del"):
        assert tool.call(verb) == ""
    assert tool.node.inventory_since(before, *tool.watched) == []


def test_check_says_what_is_missing_in_the_pod(tool: Tool) -> None:
    tool.call("add")
    tool.node.run("ip", "-n", "pod", "address", "flush", "dev", "eth0")
    with pytest.raises(PluginError, match=r"10\.88\."):
        tool.call("check")
    tool.call("del")


def test_gc_ends_every_attachment_that_it_remembers(tool: Tool) -> None:
    tool.call("gc")  # takes tables that nobody uses as well, which DEL leaves
    before = tool.node.inventory(*tool.watched)
    tool.call("add")
    tool.call("gc")
    assert tool.node.inventory_since(before, *tool.watched) == []
    assert [link["ifname"] for link in tool.inside("link")] == ["lo"]


def test_status_fails_while_the_daemon_is_away_and_says_so(tool: Tool) -> None:
    tool.daemon.stop()
    with pytest.raises(PluginError, match="nodeplug"):
        tool.call("status")
    tool.daemon.start()
    assert tool.call("status") == ""
