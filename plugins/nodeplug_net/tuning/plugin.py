"""tuning: settings of a container's interface and of its namespace (plugin `tuning`), after another plugin in a list.

Owns: the hooks: claims, and which verb does what.
Refuses: work (see `verbs`).
"""

from collections.abc import Sequence
from pathlib import Path
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
from nodeplug_net.level.events import Interest
from nodeplug_net.level.reconciler import Reconciler
from nodeplug_net.netlink.messages import get_link_by_name
from nodeplug_net.tuning.verbs import Tuning as Verbs
from nodeplug_net.undo import kernel_errors


class TuningConfig(BaseModel):
    """`[plugins.tuning.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-tuning",), description="executables on CNI_PATH; add 'tuning' to take the reference plugin over"
    )
    allowlist: Path = Field(
        Path("/etc/cni/tuning/allowlist.conf"),
        description="regular expressions, one a line, of the sysctls that may be set; without such a file all",
    )
    data_dir: Path = Field(
        Path("/run/cni/tuning"),
        description="where it is kept what interfaces were, unless a network's dataDir says otherwise",
    )
    repair_containers: bool = Field(
        False, description="restore within ten seconds what somebody changed of it; else it is logged and counted"
    )


class Tuning:
    """The plugin."""

    Config = TuningConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "config": {"data_dir": "{scratch}/tuning"},
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
                {"type": "nodeplug-tuning", "mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
            ],
        },
    }

    def __init__(self, config: TuningConfig, host: Host) -> None:
        self._names = config.names
        self._verbs = Verbs(config.allowlist, config.data_dir, host.log)
        self._log, self._logged, self._repair = host.log, "", config.repair_containers
        self._level = Reconciler(
            host, config.repair_containers, self._verbs.lost, self._verbs.restore, Interest, config.repair_containers
        )

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Encode the message that every call needs."""
        get_link_by_name()

    @hookimpl
    def health(self) -> None:
        """Restore what containers lost of their settings, if chosen; else log it: a pod may change what is its own."""
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
        """Tune the interface; the previous plugin's result is passed on with what has changed."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Restore the interface."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare the interface with what is asked for."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Forget what interfaces were whose attachments are gone."""
        with kernel_errors():
            self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._verbs.status(request)
