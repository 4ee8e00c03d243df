"""bandwidth: the rate of a container's traffic is limited (plugin `bandwidth`), after another plugin in a list.

Owns: the hooks: claims, and which verb does what.
Refuses: work (see `verbs`).
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniGc,
    CniResult,
    CniStatus,
    Example,
    Host,
    Metric,
    NotReady,
    hookimpl,
)
from nodeplug.fields import CniExecutable
from nodeplug_net.bandwidth.verbs import Bandwidth as Verbs
from nodeplug_net.level.events import Interest
from nodeplug_net.level.reconciler import Reconciler
from nodeplug_net.netlink.messages import get_link_by_name
from nodeplug_net.undo import kernel_errors


class BandwidthConfig(BaseModel):
    """`[plugins.bandwidth.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-bandwidth",),
        description="executables on CNI_PATH; add 'bandwidth' to take the reference plugin over",
    )
    repair_containers: bool = Field(
        False, description="restore at once the limits that somebody removed; else it is logged and counted"
    )


class Bandwidth:
    """The plugin."""

    Config = BandwidthConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "beside": {"bridge": {"config": {"data_dir": "{scratch}/addresses"}}},
        "cni": {
            "cniVersion": "1.0.0",
            "name": "example",
            "plugins": [
                {
                    "type": "nodeplug-bridge",
                    "bridge": "example0",
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
                },
                {
                    "type": "nodeplug-bandwidth",
                    "ingressRate": 100_000_000,
                    "ingressBurst": 1_000_000,
                    "egressRate": 100_000_000,
                    "egressBurst": 1_000_000,
                },
            ],
        },
    }

    def __init__(self, config: BandwidthConfig, host: Host) -> None:
        self._names = config.names
        self._verbs = Verbs(host.log)
        self._log, self._logged, self._repair = host.log, "", config.repair_containers
        self._level = Reconciler(
            host,
            config.repair_containers,
            self._verbs.lost,
            self._verbs.restore,
            self._interest,
            config.repair_containers,
        )

    def _interest(self) -> Interest:
        aliases = self._verbs.aliases()
        return Interest(pairs=aliases, shaping=bool(aliases))

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Encode the message that every call needs, and observe what is limited."""
        get_link_by_name()
        self._level.start()

    @hookimpl
    def stop(self) -> None:
        """Stop to observe; the limits stay."""
        self._level.stop()

    @hookimpl
    def health(self) -> None:
        """Restore what containers lost of their limits, if chosen; else log it."""
        try:
            with kernel_errors():
                self._level.attend()
            found = ""
        except NotReady as error:
            if self._repair:
                raise
            found = str(error)
        if found and found != self._logged:
            self._log.warning("%s", found)
        self._logged = found

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        """Return what is missing, and what was restored."""
        return self._level.metrics()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Limit the interface; the previous plugin's result is passed on, with the link that limits what is sent."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Delete the link that limits what is sent."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare the limits with what is asked for."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Delete the links whose attachments are gone."""
        with kernel_errors():
            self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._verbs.status(request)
