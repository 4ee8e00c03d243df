"""What a configuration asks to publish, or nothing.

Owns: that a node which publishes nothing imports none of it: no client of the API server, no memory, no time.
Refuses: to publish.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from nodeplug.config import Configuration
from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner


class Publishing(Protocol):
    """What the daemon needs of it."""

    async def run(self) -> None:
        """Publish until cancelled."""

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Take in the end of a caller's request; never waits."""

    def status(self) -> Mapping[str, Any] | None:
        """Say what was published and when, and what is in the way; None if nothing is to be published."""


class NothingPublished:
    """Does nothing, and is never at fault."""

    async def run(self) -> None:
        """Return at once."""

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Forget it."""

    def status(self) -> None:
        """Return None."""
        return


def publishing_of(
    configuration: Configuration,
    registry: Registry,
    runner: Runner,
    node: str,
    reasons: Callable[[], Mapping[str, str]],
) -> Publishing:
    """Return what publishes as a configuration asks.

    Args:
        configuration: of the daemon.
        registry: has the plugins, and says when one has news.
        runner: calls them.
        node: the node's name in the cluster.
        reasons: why parts of the daemon are not ready, by section or part.
    """
    if configuration.cluster is None or not configuration.cluster.enabled:
        return NothingPublished()
    named = configuration.cluster.kubeconfig or configuration.kubeconfig
    section = configuration.cluster.model_copy(update={"kubeconfig": named})
    from nodeplug.cluster.publisher import Publisher  # noqa: PLC0415 - only who publishes pays for it

    return Publisher(registry, runner, node, section, reasons)
