"""The networks of the cluster that a configuration asks for, or none.

Owns: that a node without `[networks]` imports no client of the API server, and that its plugins are told so.
Refuses: to ask anything.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from nodeplug.config import Configuration, Paths
from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.hosting.registry import Registry


class NetworksOfCluster(Protocol):
    """What the daemon needs of it."""

    def door_of(self, section: str) -> ClusterNetworks:
        """Return what the plugin of a section is given. Any thread."""

    async def run(self) -> None:
        """Follow the cluster until cancelled."""

    def status(self) -> Sequence[Mapping[str, str]]:
        """Say what it cannot do at present, and why; nothing if all is well."""


class NoNetworks:
    """Asks nobody, and is never at fault."""

    def door_of(self, section: str) -> ClusterNetworks:  # noqa: ARG002 - all are told the same
        """Return one that knows nothing."""
        return ClusterNetworks()

    async def run(self) -> None:
        """Return at once."""

    def status(self) -> Sequence[Mapping[str, str]]:
        """Return nothing."""
        return ()


def networks_of(configuration: Configuration, registry: Registry, node: str, paths: Paths) -> NetworksOfCluster:
    """Return the networks of a configuration. Event loop only."""
    section = configuration.networks
    if section is None or not section.enabled:
        return NoNetworks()
    named = section.kubeconfig or configuration.kubeconfig
    from nodeplug.networks.followed import Networks  # noqa: PLC0415 - only who has the section pays for it

    def claims() -> Collection[str]:
        return {route.claim.name for route in registry.routes("cni")}

    return Networks(section.model_copy(update={"kubeconfig": named}), node, paths, claims)
