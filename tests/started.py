"""A daemon that has started, on a machine that may be slow."""

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until


def until_all_run(node: ScratchNode) -> None:
    """Wait until every plugin runs: a daemon answers after five seconds though one of them is still starting."""
    until(lambda: all(one["state"] == "running" for one in node.status()["plugins"]))
