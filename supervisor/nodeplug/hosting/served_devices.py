"""What the life cycle of plugins tells to whatever serves their devices.

Owns: the four moments of it.
Refuses: how devices are served (see `nodeplug.device.resources`). What is here serves none: it is for a life cycle
without a kubelet.
"""


class ServedDevices:
    """What serves the resources of plugins, and must know how these are."""

    def serve(self, plugin: str) -> None:
        """Serve what a plugin that runs now claims; what is served already stays so."""

    def hold(self, plugin: str) -> None:
        """Keep what is served, and ask nothing of the plugin until the next `serve`."""

    def withdraw(self, plugin: str) -> None:
        """Tell that no instance of the plugin could be started; its slot says why."""

    async def end(self, plugin: str) -> None:
        """End what is served and no other plugin claims; awaited before the plugin is stopped."""
