"""How long kubelet waits, and what a test turns while it runs.

Owns: kubelet's constants in seconds, and their scaling; the switches of a running stand-in.
Refuses: to wait: the modules that use them do.
"""

from dataclasses import dataclass, field, fields
from typing import Self


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Kubelet's constants, in seconds.

    Attributes:
        dial: for the connection to a plugin, inside Register and in the plugin watcher.
        grace: from the end of a stream to the removal of its resource (endpointStopGracePeriod).
        prestart: for PreStartContainer (KubeletPreStartContainerRPCTimeoutInSecs).
        info: for GetInfo of the plugin watcher.
        notify: for NotifyRegistrationStatus of the plugin watcher.
        retry: until the plugin watcher tries a refused socket again; doubled each time, up to 244 times this.
    """

    dial: float = 10.0
    grace: float = 300.0
    prestart: float = 30.0
    info: float = 1.0
    notify: float = 5.0
    retry: float = 0.5

    def scaled(self, factor: float) -> Self:
        """Return all of them, multiplied: `Timeouts().scaled(0.01)` makes the grace three seconds."""
        return type(self)(**{name.name: getattr(self, name.name) * factor for name in fields(self)})


@dataclass
class Switches:
    """What a test turns while kubelet runs.

    Attributes:
        refuse: a message with which every registration is refused, or empty.
        hold_dial: True keeps every dial back from succeeding until its timeout.
        hold_streams: True registers plugins and never opens ListAndWatch.
        pods_known: False until kubelet has got its pods from the API server.
        static_pods: names of pods that kubelet knows without it, from its manifest folder.
        limited: True makes podresources refuse every call by its rate limit.
    """

    refuse: str = ""
    hold_dial: bool = False
    hold_streams: bool = False
    pods_known: bool = True
    static_pods: set[str] = field(default_factory=set)
    limited: bool = False
