"""What the life cycle of plugins tells to whatever serves their devices.

Owns: the four moments of it, and a listener that serves nothing.
Refuses: how devices are served (see `nodeplug.device.resources`).
"""

from typing import Protocol


class ServedDevices(Protocol):
    """What serves the resources of plugins, and must know how these are."""

    def serve(self, plugin: str) -> None:
        """Serve what a plugin that runs now claims; what is served already stays so."""

    def hold(self, plugin: str) -> None:
        """Keep what is served, and ask nothing of the plugin until the next `serve`."""

    def withdraw(self, plugin: str, reason: str) -> None:
        """Tell that no instance of the plugin could be started."""

    async def end(self, plugin: str) -> None:
        """End what is served and no other plugin claims; awaited before the plugin is stopped."""


class NoDevices:
    """Serves nothing: for a life cycle without a kubelet."""

    def serve(self, plugin: str) -> None:
        """Do nothing."""

    def hold(self, plugin: str) -> None:
        """Do nothing."""

    def withdraw(self, plugin: str, reason: str) -> None:
        """Do nothing."""

    async def end(self, plugin: str) -> None:
        """Do nothing."""
