"""The hooks of every plugin whose attachments are looked after.

Owns: claims, health, metrics and the end of looking, which are alike in all of them.
Refuses: to look and to restore, which the plugin's `Reconciler` does, and the plugin's other hooks.
"""

from collections.abc import Sequence

from nodeplug import Claim, CniClaim, Metric, hookimpl
from nodeplug_net.level.reconciler import Reconciler
from nodeplug_net.undo import kernel_errors


class KeptPlugin:
    """A plugin with a reconciler, which its `start` starts, and the names of its executables."""

    _names: Sequence[str]
    _level: Reconciler

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def stop(self) -> None:
        """Stop to observe; what was made stays."""
        self._level.stop()

    @hookimpl
    def health(self) -> None:
        """Restore what attachments lost; raise NotReady if that is not to be, or not to be done."""
        with kernel_errors():
            self._level.attend()

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        """Return what is missing, and what was restored."""
        return self._level.metrics()
