"""The listener that a configuration asks for, or none.

Owns: that a node without extenders imports none of their code, and what is told of a plugin that claims one in vain.
Refuses: to serve.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nodeplug.config import Configuration
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.sockets import KeptSockets
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner


class Extending(Protocol):
    """What the daemon needs of it."""

    def scheduling(self) -> ClusterScheduling:
        """Return what plugins are given. Any thread."""

    @property
    def trouble(self) -> str:
        """What is wrong, or will be soon; empty if nothing is."""

    async def run(self) -> None:
        """Serve until cancelled."""

    def hold(self) -> None:
        """Let new calls wait, because another daemon is about to take over."""

    def release(self) -> None:
        """Let them in again."""

    def status(self) -> Mapping[str, Any] | None:
        """Describe it; None if nothing is to be served."""


@dataclass(slots=True)
class NoListener:
    """Serves nothing."""

    registry: Registry
    kept: KeptSockets

    def scheduling(self) -> ClusterScheduling:
        """Return one that knows nothing."""
        return ClusterScheduling()

    @property
    def trouble(self) -> str:
        """Say that a plugin claims an extender that nobody can ask."""
        claimed = [str(route.claim.name) for route in self.registry.routes("extender")]
        if not claimed:
            return ""
        return (
            f"nobody can ask {', '.join(claimed)}: add an [extender] table to the configuration, and restart the daemon"
        )

    async def run(self) -> None:
        """Close what the daemon before has left, where callers would wait for ever."""
        for name in self.kept.names():
            self.kept.drop(name)

    def hold(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""

    def status(self) -> Mapping[str, Any] | None:
        """Return nothing."""
        return None


def listener_of(configuration: Configuration, registry: Registry, runner: Runner, kept: KeptSockets) -> Extending:
    """Return the listener of a configuration."""
    section = configuration.extender
    if section is None or not section.enabled:
        return NoListener(registry, kept)
    from nodeplug.extender.listener import Listener  # noqa: PLC0415 - only who has one pays for it
    from nodeplug.extender.service import ExtenderService  # noqa: PLC0415

    cluster = None
    if section.follow:
        from nodeplug.extender.followed import FollowedCluster  # noqa: PLC0415

        cluster = FollowedCluster(section.kubeconfig or configuration.kubeconfig)
    service = ExtenderService(registry, runner, section.concurrency, cluster)
    return Listener(section, registry, service, kept, cluster)
