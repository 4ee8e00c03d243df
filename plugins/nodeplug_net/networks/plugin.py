"""networks: pods with further interfaces, by annotations (plugin `networks`).

Owns: the hooks: claims, and which method serves which verb.
Refuses: work. What the verbs do is in `verbs`.
"""

from collections.abc import Sequence
from typing import ClassVar

from nodeplug import Claim, CniClaim, CniStatus, Example, Host, hookimpl
from nodeplug_net.networks.config import ANNOTATIONS, NetworksConfig
from nodeplug_net.networks.plan import Planner
from nodeplug_net.networks.records import Records
from nodeplug_net.networks.verbs import Verbs
from nodeplug_net.undo import kernel_errors
from nodeplug_net.verbs_plugin import VerbsPlugin


class Networks(VerbsPlugin[Verbs]):
    """The plugin."""

    Config = NetworksConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "beside": {"bridge": {"config": {"data_dir": "{scratch}/addresses"}}},
        "cni": {
            "type": "nodeplug-networks",
            # As containerd calls for a pod without annotations: nobody is asked which networks it wants.
            "runtimeConfig": {ANNOTATIONS: {}},
            "delegates": [
                {
                    "cniVersion": "1.0.0",
                    "name": "pods",
                    "type": "nodeplug-bridge",
                    "bridge": "pods0",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
                }
            ],
        },
    }

    def __init__(self, config: NetworksConfig, host: Host) -> None:
        self._names = config.names
        super().__init__(Verbs(host, Planner(host, frozenset(config.names), config.conf_dir), Records(host)))

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Say which networks are in use, and have the status of pods written that may be lost."""
        self._verbs.recover()

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if the default network would fail."""
        with kernel_errors():
            self._verbs.status(request)
