"""Kubelet's constants for DRA drivers, which tests shorten.

Owns: the numbers.
Refuses: to wait.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class DraTimeouts:
    """In seconds.

    Attributes:
        call: for NodePrepareResources and NodeUnprepareResources (PluginClientTimeout).
        info: for GetInfo of the plugin watcher.
        notify: for NotifyRegistrationStatus of the plugin watcher.
        retry: until a socket that was refused is tried again.
        poll: between two looks at the folder of sockets.
        wipe: from the end of a driver's last instance until its slices are deleted.
        health: from the end of a stream of health to the next try.
        stale: after which health that nobody repeats is unknown, unless the driver says another time.
    """

    call: float = 45.0
    info: float = 1.0
    notify: float = 5.0
    retry: float = 1.0
    poll: float = 0.05
    wipe: float = 30.0
    health: float = 5.0
    stale: float = 30.0


KUBELETS: Final = DraTimeouts()
"""As they are."""
