"""CNI plugins that break the specification, one rule each."""

import json
from collections.abc import Sequence
from errno import ENODEV
from hashlib import sha256
from ipaddress import ip_interface
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from nodeplug import (
    Claim,
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniClaim,
    CniDel,
    CniGc,
    CniInterface,
    CniIp,
    CniResult,
    CniStatus,
    Exhausted,
    Host,
    IncompatibleVersion,
    InvalidRequest,
    NotFound,
    NotReady,
    PluginError,
    hookimpl,
)

_NUMBERS: Final = count(1)
_PREFIX: Final = "tame"


def end_of(container_id: str, ifname: str) -> str:
    return f"{_PREFIX}{sha256(f'{container_id} {ifname}'.encode()).hexdigest()[:8]}"


class TameConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    leases: Path


class Tame:
    """Breaks nothing: a veth pair, an address out of a hash, and a lease for it."""

    Config = TameConfig
    example: ClassVar[dict[str, Any]] = {"config": {"leases": "{scratch}/leases"}, "cni": {"type": "example-tame"}}

    def __init__(self, config: TameConfig, host: Host) -> None:
        self.leases = config.leases

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [CniClaim("example-tame")]

    @hookimpl
    def start(self) -> None:
        self.leases.mkdir(parents=True, exist_ok=True)

    def address(self, request: CniAttachmentRequest) -> str:
        digest = sha256(request.container_id.encode()).digest()
        return f"10.{digest[0]}.{digest[1]}.{digest[2]}/8"

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        name, address = end_of(request.container_id, request.ifname), self.address(request)
        with IPRoute() as outside:
            if not outside.link_lookup(ifname=name):
                try:
                    peer = {"ifname": request.ifname, "net_ns_fd": request.netns.fd}
                    outside.link("add", ifname=name, kind="veth", peer=peer)
                except NetlinkError as error:
                    self.failed()
                    raise PluginError(f"cannot make {request.ifname}: {error}") from None
        (self.leases / name).write_text(json.dumps(address))
        with request.netns.entered(), IPRoute() as inside:
            index = inside.link("get", ifname=request.ifname)[0]["index"]
            self.set_address(inside, index, address)
            inside.link("set", index=index, state="up")
            mac = str(inside.get_links(index)[0].get_attr("IFLA_ADDRESS"))
        link = CniInterface(self.shown(request.ifname), mac=mac, sandbox=request.netns.path)
        return CniResult(interfaces=(link,), ips=(CniIp(ip_interface(address), gateway=None, interface=0),))

    def failed(self) -> None:
        return

    def shown(self, ifname: str) -> str:
        return ifname

    def set_address(self, inside: Any, index: int, address: str) -> None:
        inside.addr("replace", index=index, address=address.partition("/")[0], prefixlen=8)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.remove(end_of(request.container_id, request.ifname))

    def remove(self, name: str) -> None:
        with IPRoute() as outside:
            try:
                outside.link("del", ifname=name)
            except NetlinkError as error:
                if error.code != ENODEV:
                    raise
        (self.leases / name).unlink(missing_ok=True)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        with request.netns.entered(), IPRoute() as inside:
            if not inside.link_lookup(ifname=request.ifname):
                raise PluginError(f"there is no {request.ifname}")

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        if request.valid is not None:
            self.collect({end_of(one.container_id, one.ifname) for one in request.valid})

    def collect(self, kept: set[str]) -> None:
        for lease in list(self.leases.iterdir()):
            if lease.name not in kept:
                self.remove(lease.name)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        return


class AddsNothing(Tame):
    breaks = "add-succeeds", "no address is left"

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        raise Exhausted("no address is left")


class SkipsVersion(Tame):
    breaks = "every-version-is-answered", "0.3.1 is too old"

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        if request.version == "0.3.1":
            raise IncompatibleVersion("0.3.1 is too old")
        return super().cni_add(request)


class NamesOtherInterface(Tame):
    breaks = "result-interfaces-exist", "eth9 of the result"

    def shown(self, ifname: str) -> str:
        return "eth9"


class SetsNoAddress(Tame):
    breaks = "result-addresses-exist", "no address"

    def set_address(self, inside: Any, index: int, address: str) -> None:
        return


class GivesNewAddress(Tame):
    breaks = "repeated-add-answers-alike", "then"

    def address(self, request: CniAttachmentRequest) -> str:
        return f"10.1.1.{next(_NUMBERS)}/8"


class LeavesHalf(Tame):
    breaks = "failed-add-leaves-nothing", "link half"

    def failed(self) -> None:
        with IPRoute() as outside:
            outside.link("add", ifname="half0", kind="veth", peer={"ifname": "half1"})


class GivesOneAddress(Tame):
    breaks = "parallel-adds-succeed", "10.1.1.1/8 was given twice"

    def address(self, request: CniAttachmentRequest) -> str:
        return "10.1.1.1/8"


class RefusesArguments(Tame):
    breaks = "what-runtimes-add-is-tolerated", "unknown argument"

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        if request.args:
            raise InvalidRequest(f"unknown argument {next(iter(request.args))}")
        return super().cni_add(request)


class ChecksTooMuch(Tame):
    breaks = "check-after-add-succeeds", "not well"

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        raise PluginError("not well")


class ChecksNothing(Tame):
    breaks = "check-notices-a-lost-interface", "CHECK succeeded without eth0"

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        return


class DeletesNothing(Tame):
    breaks = "nothing-is-left-after-del", "link tame"

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        return


class DeletesOnce(Tame):
    breaks = "second-del-succeeds", "is not here"

    def remove(self, name: str) -> None:
        if not (self.leases / name).exists():
            raise NotFound(f"{name} is not here")
        super().remove(name)


class NeedsNamespace(Tame):
    breaks = "del-without-netns-succeeds", "without a namespace"

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        if request.netns is None:
            raise InvalidRequest("nothing can be done without a namespace")
        super().cni_del(request)


class NeedsNamespaceToo(NeedsNamespace):
    breaks = "del-after-the-netns-is-gone-succeeds", "without a namespace"


class NeedsResult(Tame):
    breaks = "del-without-result-succeeds", "no prevResult"

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        if request.prev_result is None:
            raise InvalidRequest("there is no prevResult")
        super().cni_del(request)


class DeletesWhatItKnows(DeletesOnce):
    breaks = "del-of-what-was-never-added-succeeds", "is not here"


class Remembers(Tame):
    breaks = "del-after-a-crash-succeeds", "link tame"

    def __init__(self, config: TameConfig, host: Host) -> None:
        super().__init__(config, host)
        self.known: set[str] = set()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.known.add(end_of(request.container_id, request.ifname))
        return super().cni_add(request)

    def remove(self, name: str) -> None:
        if name in self.known:
            super().remove(name)


class CollectsWithoutList(Tame):
    breaks = "gc-without-a-list-does-nothing", "- link tame"

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        self.collect({end_of(one.container_id, one.ifname) for one in request.valid or ()})


class CollectsAll(Tame):
    breaks = "gc-keeps-what-is-valid", "- link tame"

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        self.collect(set())


class CollectsNothing(Tame):
    breaks = "gc-removes-the-rest", "leases/tame"

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        return


class IsNeverReady(Tame):
    breaks = "status-succeeds", "not today"

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        raise NotReady("not today")
