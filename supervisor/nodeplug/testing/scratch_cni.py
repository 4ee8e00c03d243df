"""A CNI plugin object in a host namespace of its own, called as the daemon calls it.

Owns: new network namespaces that exist as long as their descriptors (nothing is mounted, nothing is left behind), one
new thread per call that starts in the caller's namespace, the plugin's `Host`, and what the daemon would have recorded.
Refuses: the wire. `ScratchNode` and `CniRuntime` go through executables and JSON; this goes straight to the hooks.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniRecord,
    CniResult,
    CniStatus,
    Netns,
    ValidAttachment,
)
from nodeplug.contract.host import Delegate
from nodeplug.testing.plugin_host import host

_CLONE_NEWNET: Final = 0x40000000
_Value = TypeVar("_Value")


def run_in(netns: Netns | None, function: Callable[[], _Value]) -> _Value:
    """Run a function in a new thread inside a namespace; return its result or raise its exception."""
    answers: list[_Value] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            if netns is not None:
                netns.enter()
            answers.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="scratch-call", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]


def new_netns() -> Netns:
    """Create a network namespace; it ends when its descriptor is closed and no process or veth peer is left in it.

    Raises:
        OSError: the caller is not root.
    """

    def unshare() -> Netns:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare a network namespace")
        made = Netns.current()
        return Netns(made.fd, f"/proc/{os.getpid()}/fd/{made.fd}")

    return run_in(None, unshare)


class ScratchCni:
    """A host namespace, container namespaces, and calls of one plugin.

    Args:
        folder: of the plugin's `Host`; exists.
        delegate: answers `host.delegate(request, type, config)`; by default there are no other plugins.
        boot_id: as the journal stamps it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        delegate: Delegate | None = None,
        boot_id: str = "boot-1",
    ) -> None:
        self.folder = folder
        self.host_netns = new_netns()
        self._containers: list[Netns] = []
        self._records: dict[tuple[str, ...], CniRecord] = {}
        self.host = host(folder, plugin="scratch", boot_id=boot_id, delegate=delegate, attachments=self.attachments)

    def container(self) -> Netns:
        """Create a container's namespace; it is closed with this object."""
        netns = new_netns()
        self._containers.append(netns)
        return netns

    def on_host(self, function: Callable[[], _Value]) -> _Value:
        """Run a function in the host namespace."""
        return run_in(self.host_netns, function)

    def attachments(self) -> list[CniRecord]:
        """Answer `host.attachments()`: what ADDs made and no DEL has ended, whatever the plugin."""
        return list(self._records.values())

    def add(
        self, plugin: Any, config: Mapping[str, Any], container_id: str, netns: Netns, ifname: str = "eth0", **more: Any
    ) -> CniResult:
        """Call ADD; `more` sets further fields of the request, such as args."""
        request = self.request(CniAdd, config, container_id=container_id, netns=netns, ifname=ifname, **more)
        result = cast("CniResult", self.on_host(lambda: plugin.cni_add(request=request)))
        self._records[_key(request)] = CniRecord(
            claim=request.claim,
            network=request.network,
            version=request.version,
            config=request.config,
            container_id=container_id,
            ifname=ifname,
            args=request.args,
            netns=netns.path,
            namespace=netns.identity,
            host=self.host_netns.identity,
            result=result,
        )
        return result

    def delete(
        self,
        plugin: Any,
        config: Mapping[str, Any],
        container_id: str,
        netns: Netns | None = None,
        ifname: str = "eth0",
        **more: Any,
    ) -> None:
        """Call DEL."""
        request = self.request(CniDel, config, container_id=container_id, netns=netns, ifname=ifname, **more)
        self.on_host(lambda: plugin.cni_del(request=request))
        self._records.pop(_key(request), None)

    def check(
        self,
        plugin: Any,
        config: Mapping[str, Any],
        container_id: str,
        netns: Netns,
        result: CniResult,
        ifname: str = "eth0",
    ) -> None:
        """Call CHECK."""
        request = self.request(
            CniCheck, config, container_id=container_id, netns=netns, ifname=ifname, prev_result=result
        )
        self.on_host(lambda: plugin.cni_check(request=request))

    def gc(self, plugin: Any, config: Mapping[str, Any], valid: Sequence[tuple[str, str]] | None) -> None:
        """Call GC with pairs of container id and interface name, or None for "the caller said nothing"."""
        pairs = valid if valid is None else tuple(ValidAttachment(container_id=one, ifname=name) for one, name in valid)
        request = self.request(CniGc, config, valid=pairs)
        self.on_host(lambda: plugin.cni_gc(request=request))

    def status(self, plugin: Any, config: Mapping[str, Any]) -> None:
        """Call STATUS."""
        request = self.request(CniStatus, config)
        self.on_host(lambda: plugin.cni_status(request=request))

    def request(self, verb: Callable[..., _Value], config: Mapping[str, Any], **fields: Any) -> _Value:
        """Build a request of a verb from a configuration with `name`, `type` and `cniVersion`."""
        return verb(
            claim=str(config.get("type", "scratch")),
            network=str(config["name"]),
            version=str(config.get("cniVersion", "1.0.0")),
            config=config,
            host_netns=self.host_netns,
            **fields,
        )

    def close(self) -> None:
        """Close every namespace: the kernel destroys the links inside."""
        for netns in (*self._containers, self.host_netns):
            netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(request: CniAdd | CniDel) -> tuple[str, ...]:
    return request.claim, request.network, request.container_id, request.ifname
