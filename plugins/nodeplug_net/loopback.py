"""loopback: a container's `lo`, up (plugin `loopback`).

Owns: the interface `lo` of a container's namespace.
Refuses: other interfaces; CNI_IFNAME is `lo` whatever the runtime says, as in the reference plugin.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniInterface,
    CniIp,
    CniResult,
    Host,
    Netns,
    PluginError,
    hookimpl,
)
from nodeplug.fields import CniExecutable
from nodeplug_net.netlink.links import Link, Links, links_in
from nodeplug_net.undo import kernel_errors

_NAME: Final = "lo"
_MAC: Final = "00:00:00:00:00:00"


class LoopbackConfig(BaseModel):
    """`[plugins.loopback.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-loopback",), description="executables on CNI_PATH; add 'loopback' to take the reference plugin over"
    )
    where_absent: tuple[CniExecutable, ...] = Field(
        ("loopback",), description="executables that are installed only where no other program has the name"
    )


class Loopback:
    """The plugin."""

    Config = LoopbackConfig
    isolation = "thread"

    def __init__(self, config: LoopbackConfig, host: Host) -> None:
        self._names = config.names
        self._where_absent = tuple(name for name in config.where_absent if name not in config.names)
        self._host = host

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        own = [CniClaim(name) for name in self._names]
        return own + [CniClaim(name, gives_way=True) for name in self._where_absent]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Bring `lo` up; the previous plugin's result is passed on unchanged."""
        with kernel_errors(), _lo(request.netns) as (links, lo):
            links.set_up(lo)
            addresses = sorted(links.addresses(lo), key=lambda address: address.version)
        if request.prev_result is not None:
            return request.prev_result
        return CniResult(
            interfaces=(CniInterface(_NAME, mac=_MAC, sandbox=request.netns.path),),
            ips=tuple(CniIp(address, gateway=None, interface=0) for address in addresses),
        )

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Bring `lo` down; without a namespace there is nothing to do."""
        if request.netns is None:
            return
        with kernel_errors(), _lo(request.netns) as (links, lo):
            links.set_down(lo)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Confirm that `lo` is up."""
        with kernel_errors(), _lo(request.netns) as (_, lo):
            if not lo.is_up:
                raise PluginError(f"interface lo in {request.netns.path} is down; DEL and ADD the attachment")


@contextmanager
def _lo(netns: Netns) -> Iterator[tuple[Links, Link]]:
    with links_in(netns) as links:
        lo = links.get(_NAME)
        if lo is None:  # every namespace has one from the start, and the kernel does not delete it
            raise PluginError(f"there is no interface lo in {netns.path}")
        yield links, lo
