"""firewall: a host's policy lets packets of containers pass, and bridges are kept apart (plugin `firewall`).

Owns: the hooks: claims, the reference's sentences, and the result that is passed on.
Refuses: work. What the verbs do is in `containers`.
"""

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniResult,
    CniStatus,
    Example,
    Host,
    InvalidRequest,
    LimitedConnectivity,
    Netns,
    PluginError,
    hookimpl,
)
from nodeplug.fields import CniExecutable
from nodeplug_net.comparison import refuse
from nodeplug_net.firewall.config import check_firewall, parse_firewall
from nodeplug_net.firewall.containers import Containers
from nodeplug_net.firewall.messages import TABLE
from nodeplug_net.firewall.rules import CHAINS
from nodeplug_net.level.events import Interest
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.reconciler import REPAIR, Found, Reconciler
from nodeplug_net.undo import kernel_errors

if TYPE_CHECKING:
    from nodeplug_net.nftables.sockets import Identity


class FirewallConfig(BaseModel):
    """`[plugins.firewall.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-firewall",), description="executables on CNI_PATH; add 'firewall' to take the reference plugin over"
    )
    repair: bool = REPAIR


class Firewall(KeptPlugin):
    """The plugin."""

    Config = FirewallConfig
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
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
                },
                {"type": "nodeplug-firewall"},
            ],
        },
    }

    def __init__(self, config: FirewallConfig, host: Host) -> None:
        self._names = config.names
        self._containers = Containers(host)
        self._home: Identity = (0, 0)
        self._level = Reconciler(host, config.repair, self._look, self._restore, self._interest)

    @hookimpl
    def start(self) -> None:
        """Restore rules that are missing, and end what an ADD left unfinished when the daemon was killed."""
        current = Netns.current()
        self._home = current.identity
        current.close()
        with kernel_errors():
            self._containers.recover(self._home)
        self._level.start()

    @hookimpl
    def stop(self) -> None:
        """Stop to observe, and close what is open; the rules stay."""
        super().stop()
        self._containers.close()

    def _look(self) -> Found:
        missing = self._containers.missing(self._home)
        return {TABLE: missing} if missing else {}

    def _restore(self, _: str) -> None:
        self._containers.restore(self._home)

    def _interest(self) -> Interest:
        return Interest(rules=CHAINS) if self._containers.has_any(self._home) else Interest()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Accept the container's packets; the previous plugin's result is passed on unchanged."""
        conf, wanted = check_firewall(request), parse_firewall(request)
        with kernel_errors():
            self._containers.add(request, wanted, conf.backend)
        if request.prev_result is None:  # refused before
            raise InvalidRequest("missing prevResult from earlier plugin")
        return request.prev_result

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """End what is accepted, whatever the configuration says."""
        with kernel_errors():
            self._containers.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare the rules with what is asked for."""
        wanted = parse_firewall(request)
        with kernel_errors():
            found = self._containers.differences(request, wanted)
        refuse(request, found)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """End the rules that belong to no valid attachment."""
        with kernel_errors():
            self._containers.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Restore what containers lost; raise LimitedConnectivity if that fails or something else drops packets."""
        conf = check_firewall(request)
        with kernel_errors():
            self._level.refuse_fight(TABLE, request.host_netns)
        try:
            self._containers.mend(request, conf)
        except (OSError, PluginError) as error:
            raise LimitedConnectivity(f"packets of containers are not accepted: {error}") from error
