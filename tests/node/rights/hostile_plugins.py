"""Plugins that ask their host for what is not theirs; `inspect` returns what each question brought."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl

POD = n.ClusterPod("default", "other", uid="uid-other")
ASKS: Mapping[str, Callable[[n.Host], Any]] = {
    "holders": lambda host: list(host.holders("example.com/fuse")),
    "attachments": lambda host: list(host.attachments()),
    "former_sections": lambda host: [one.journal.folder.name for one in host.former_sections()],
    "networks.pod": lambda host: host.networks.pod("default", "web").name,
    "networks.definition": lambda host: host.networks.definition("default", "storage").config,
    "networks.conflist": lambda host: host.networks.conflist("pods"),
    "networks.report": lambda host: host.networks.report(POD, [{"name": "forged"}]),
    "networks.hold": lambda host: host.networks.hold(["forged"]),
    "scheduling.node": lambda host: host.scheduling.node("node-1"),
    "scheduling.bound": lambda host: list(host.scheduling.bound()),
    "scheduling.pod": lambda host: host.scheduling.pod("default", "web"),
    "scheduling.bind": lambda host: host.scheduling.bind("default", "web", "uid", "node-1"),
}
"""Each operation that not every section may ask for, but `delegate`."""


class _Hostile:
    """Asks for everything in `inspect`, and for a delegate of its own."""

    class Config(BaseModel, extra="forbid"):
        program: str = ""
        """The folder of a program `pwn`."""

    def __init__(self, config: Config, host: n.Host) -> None:
        self.config, self.host = config, host

    @hookimpl
    def inspect(self) -> Mapping[str, str]:
        told = {name: _tried(lambda ask=ask: ask(self.host)) for name, ask in ASKS.items()}  # type: ignore[misc]
        return {**told, "delegate": _tried(self._delegate)}

    def _delegate(self) -> object:
        own = n.Netns.current()
        try:
            request = n.CniStatus(
                claim="pwn", network="n", version="1.1.0", config={}, path=(self.config.program,), host_netns=own
            )
            return self.host.delegate(request, "pwn", {"name": "n", "cniVersion": "1.1.0"})
        finally:
            own.close()


class Device(_Hostile):
    """A device plugin."""

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        return [n.DeviceClaim("example.com/hostile")]

    @hookimpl
    def device_list(self) -> Sequence[n.Device]:
        return [n.Device(n.DeviceId("d0"))]


class Former(Device):
    """A device plugin with an exclusive claim."""

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        return [n.DeviceClaim("example.com/hostile"), n.ExclusiveClaim("cards")]


class Extender(_Hostile):
    """A scheduler extender."""

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        return [n.ExtenderClaim("hostile")]

    @hookimpl
    def extender_bind(self, request: n.ExtenderBind) -> None:
        self.host.scheduling.bind(request.namespace, request.pod, request.uid, request.node)


class Network(_Hostile):
    """A CNI plugin that delegates with changes, as the key `change` of its configuration names them."""

    def __init__(self, config: _Hostile.Config, host: n.Host) -> None:
        super().__init__(config, host)
        self._earlier: n.CniAdd | None = None

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        return [n.CniClaim("hostile")]

    @hookimpl
    def cni_add(self, request: n.CniAdd) -> n.CniResult:
        change = request.config.get("change", "")
        if change == "later":
            self._earlier = request
            return n.CniResult()
        asked = self._earlier if change == "earlier" and self._earlier is not None else request
        config = {"name": request.network, "cniVersion": request.version, "type": "inner"}
        if change == "another thread":
            return _elsewhere(lambda: self.host.delegate(request, "inner", config))
        return self.host.delegate(_changed(asked, change), "inner", config) or n.CniResult()

    @hookimpl
    def cni_del(self, request: n.CniDel) -> None:
        change = request.config.get("change", "")
        if change == "DEL becomes ADD":
            fields = {name: getattr(request, name) for name in ("id", "claim", "network", "version", "config", "path")}
            again = n.CniAdd(
                **fields,
                host_netns=request.host_netns,
                container_id=request.container_id,
                ifname=request.ifname,
                netns=request.host_netns,
            )
            self.host.delegate(again, "inner", {"name": request.network, "cniVersion": request.version})

    @hookimpl
    def cni_gc(self, request: n.CniGc) -> None:
        if not (ended := request.config.get("ended")):
            return
        deletion = n.CniDel(
            id=request.id,
            claim="inner",
            network=request.network,
            version=request.version,
            config={},
            path=request.path,
            host_netns=request.host_netns,
            container_id=ended,
            ifname="eth0",
            netns=None,
        )
        self.host.delegate(deletion, "inner", {"name": request.network, "cniVersion": request.version})


def _changed(request: n.CniAdd, change: str) -> Any:
    match change:
        case "path":
            return replace(request, path=("/tmp",))
        case "container":
            return replace(request, container_id="of-another")
        case "namespace":
            return replace(request, netns=request.host_netns)
        case "host namespace":
            return replace(request, host_netns=request.netns)
        case "id":
            return replace(request, id="00000000")
        case "interface and arguments":
            return replace(request, ifname="net1", args={"IgnoreUnknown": "1"}, args_text="", network="inner")
        case _:
            return request


def _elsewhere(ask: Callable[[], n.CniResult]) -> n.CniResult:
    found: list[n.CniResult | BaseException] = []

    def run() -> None:
        try:
            found.append(ask())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _tried(ask: Callable[[], object]) -> str:
    try:
        return f"it was answered: {ask()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
