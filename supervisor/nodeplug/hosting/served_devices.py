"""What the life cycle of plugins reports to the code that serves their devices.

Owns: the four events.
Refuses: how devices are served (`nodeplug.device.resources`). This class serves none, for a life cycle without kubelet.
"""

from dataclasses import dataclass


class ServedDevices:
    """Is told what happens to the plugins whose resources it serves."""

    def serve(self, plugin: str) -> None:
        """Serve what a running plugin now claims; what is already served stays served."""

    def hold(self, plugin: str) -> None:
        """Keep what is served, and ask nothing of the plugin until the next `serve`."""

    def withdraw(self, plugin: str, why: str) -> None:
        """Note that no instance of the plugin could be started, or loaded."""

    async def end(self, plugin: str, *, keep: bool = False) -> None:
        """End what is served and claimed by no other plugin; awaited before the plugin is stopped.

        Args:
            plugin: its section's name.
            keep: the daemon ends, and the next one may begin with what this one served last.
        """


@dataclass(frozen=True, slots=True)
class BothFronts(ServedDevices):
    """Passes on what happens to plugins to both fronts: each knows which devices are its own."""

    fronts: tuple[ServedDevices, ...]

    def serve(self, plugin: str) -> None:
        """See `ServedDevices.serve`; so for all methods here."""
        for one in self.fronts:
            one.serve(plugin)

    def hold(self, plugin: str) -> None:
        """Keep what is served."""
        for one in self.fronts:
            one.hold(plugin)

    def withdraw(self, plugin: str, why: str) -> None:
        """Note that no instance could be started, or loaded."""
        for one in self.fronts:
            one.withdraw(plugin, why)

    async def end(self, plugin: str, *, keep: bool = False) -> None:
        """End what is served."""
        for one in self.fronts:
            await one.end(plugin, keep=keep)
