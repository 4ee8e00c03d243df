"""portmap: ports of the host that lead to containers (plugin `portmap`), after another plugin in a list.

Owns: the hooks: claims, the reference's sentences, and the result that is passed on.
Refuses: work. What the verbs do is in `host_ports`.
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
from nodeplug_net.level.events import Interest
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.reconciler import REPAIR, Found, Reconciler
from nodeplug_net.portmap.config import check_portmap
from nodeplug_net.portmap.host_ports import HostPorts, parsed
from nodeplug_net.portmap.messages import TABLE
from nodeplug_net.undo import kernel_errors

if TYPE_CHECKING:
    from nodeplug_net.nftables.sockets import Identity


class PortmapConfig(BaseModel):
    """`[plugins.portmap.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-portmap",), description="executables on CNI_PATH; add 'portmap' to take the reference plugin over"
    )
    repair: bool = REPAIR
    reserve: bool = Field(
        True,
        description="hold a socket at each port, so that no program of the host takes it; false where the runtime does "
        "so itself, as podman",
    )


class Portmap(KeptPlugin):
    """The plugin."""

    Config = PortmapConfig
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
                {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
            ],
        },
    }

    def __init__(self, config: PortmapConfig, host: Host) -> None:
        self._names = config.names
        self._ports = HostPorts(host, reserve=config.reserve)
        self._home: Identity = (0, 0)
        self._level = Reconciler(host, config.repair, self._look, self._restore, self._interest)

    @hookimpl
    def start(self) -> None:
        """Reserve the ports of containers again, and end what an ADD left unfinished when the daemon was killed."""
        current = Netns.current()
        self._home = current.identity
        current.close()
        with kernel_errors():
            self._ports.recover(self._home)
        self._level.start()

    @hookimpl
    def stop(self) -> None:
        """Stop to observe. The ports stay reserved."""
        super().stop()
        self._ports.close()

    def _look(self) -> Found:
        missing = self._ports.missing(self._home)
        return {TABLE: missing} if missing else {}

    def _restore(self, _: str) -> None:
        self._ports.restore(self._home)

    def _interest(self) -> Interest:
        return Interest(rules=(TABLE,)) if self._ports.has_any(self._home) else Interest()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Forward the ports; the previous plugin's result is passed on unchanged."""
        wanted = parsed(request)
        if request.prev_result is None:
            raise InvalidRequest("must be called as chained plugin")
        with kernel_errors():
            self._ports.add(request, wanted)
        return request.prev_result

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """End the forwarding."""
        with kernel_errors():
            self._ports.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare the forwarding with what is asked for."""
        wanted = parsed(request)
        with kernel_errors():
            found = self._ports.differences(request, wanted)
        refuse(request, found)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """End the ports that belong to no valid attachment."""
        with kernel_errors():
            self._ports.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Restore what containers lost; raise LimitedConnectivity if that fails."""
        check_portmap(request)
        with kernel_errors():
            self._level.refuse_fight(TABLE, request.host_netns)
        try:
            self._ports.mend(request)
        except (OSError, PluginError) as error:
            raise LimitedConnectivity(f"host ports cannot be restored: {error}") from error
