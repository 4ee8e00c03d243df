"""A daemon that serves an extender over HTTP."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.acted_api import ActedApi

from nodeplug.testing import Scheduler, ScratchNode
from nodeplug.testing.waiting import until

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "docs" / "examples"
RACKS = """
[plugins.racks]
uses = "racks:Racks"
[plugins.racks.config]
racks = { a = "r1", b = "r2", c = "r2" }
repaired = ["r1"]
"""
PROBE = '\n[plugins.probe]\nuses = "extender_probe:Probe"\n'
Make = Callable[..., ScratchNode]


@pytest.fixture
def make_node(short_path: Path) -> Iterator[Make]:
    """Start a daemon with plugins, an `[extender]` table with more keys, and an API server to follow."""
    made: list[ScratchNode] = []

    def make(
        plugins: str = RACKS, *, keys: str = "", start: bool = True, api: ActedApi | None = None, **options: Any
    ) -> ScratchNode:
        root = short_path / f"n{len(made)}"
        root.mkdir()
        if api is not None:
            (root / "kubeconfig").write_text(api.kubeconfig)
            keys += f'\nfollow = true\nkubeconfig = "{root}/kubeconfig"'
        listen = "" if "listen" in keys else 'listen = "127.0.0.1:0"'
        text = f"[extender]\n{listen}\n{keys}\n{plugins}"
        env = {"PYTHONPATH": f"{EXAMPLES}:{HERE}"}
        made.append(ScratchNode(root, text, env=env, fork=True, **options))
        if start:
            made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


def address(node: ScratchNode) -> str:
    """Wait until a daemon listens, and return where."""
    until(lambda: node.status()["extender"]["listens"], found=lambda: node.log)
    return str(node.status()["extender"]["address"])


def asking(node: ScratchNode, name: str = "racks", **options: Any) -> Scheduler:
    return Scheduler(f"{address(node)}/{name}", **options)
