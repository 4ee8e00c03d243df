"""dhcp: addresses that a DHCP server of the network leases (plugin `dhcp`).

Owns: the hooks: bridges, macvlan and the like, ours or the reference's, delegate their IPAM here.
Refuses: work, and IPv6, which the reference's dhcp does not do either.
"""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Claim, CniAdd, CniCheck, CniClaim, CniDel, CniGc, CniResult, CniStatus, Host, NotReady, hookimpl
from nodeplug.fields import CniExecutable, Seconds
from nodeplug_net.dhcp.exchange import LONGEST_WAIT
from nodeplug_net.dhcp.keeper import Keeper
from nodeplug_net.dhcp.leases import Leases
from nodeplug_net.dhcp.verbs import Verbs
from nodeplug_net.undo import kernel_errors


class DhcpPluginConfig(BaseModel):
    """`[plugins.dhcp.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-dhcp",), description="executables on CNI_PATH; add 'dhcp' to take the reference plugin over"
    )
    timeout: Seconds = Field(45.0, gt=0, description="how long an ADD asks for an address; keep it below its deadline")
    resend_max: Seconds = Field(LONGEST_WAIT, ge=1, description="the longest wait between two messages to servers")
    broadcast: bool = Field(False, description="ask servers to broadcast their answers")


class Dhcp:
    """The plugin."""

    Config = DhcpPluginConfig
    isolation = "thread"

    def __init__(self, config: DhcpPluginConfig, host: Host) -> None:
        self._names = config.names
        leases = Leases(host)
        self._keeper = Keeper(leases, host.log, config.resend_max)
        self._verbs = Verbs(leases, self._keeper, host.log, config.timeout, config.resend_max, config.broadcast)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Go on to prolong the leases of an earlier daemon, and give back what it did not get."""
        self._verbs.recover()
        self._keeper.start()

    @hookimpl
    def stop(self) -> None:
        """Prolong nothing more; the leases stay, for who comes next."""
        self._keeper.stop()

    @hookimpl
    def health(self) -> None:
        """Raise NotReady if containers of this node lose their addresses."""
        if missing := self._verbs.missing():
            raise NotReady(missing)

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Get a lease for the container's interface."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Give the lease back."""
        self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Confirm that the lease is known and has not ended."""
        self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Give back the leases of attachments that are gone."""
        self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        self._verbs.status(request)
