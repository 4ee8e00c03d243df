"""Authorizes the operations that plugins ask of the daemon: one right for each operation of `Host`.

The rights hold for a plugin in a process and in a thread. They are what protects the node from a plugin in a process;
one in a thread of the daemon could do without its `Host`.

An operation without a row in RIGHTS cannot be asked for: `verify` raises, and the daemon does not start.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from nodeplug.contract.cgroups import ProgramCgroups
from nodeplug.contract.cluster import ClusterNetworks
from nodeplug.contract.errors import InvalidRequest, NotReady, PluginError, clip
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal
from nodeplug.contract.netns import Netns
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.sockets import KeptSockets
from nodeplug.contract.values import (
    ClaimKind,
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniDel,
    CniGc,
    CniRequest,
    CniStatus,
    ExtenderBind,
)
from nodeplug.hosting.in_flight import InFlight
from nodeplug.hosting.registry import Registry

LOG: Final = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
MEMBERS: Final[Mapping[str, type]] = {
    "journal": Journal,
    "cgroups": ProgramCgroups,
    "sockets": KeptSockets,
    "networks": ClusterNetworks,
    "scheduling": ClusterScheduling,
}
"""The members of `Host` that have operations of their own."""
_VERBS: Final[Mapping[type[CniRequest], tuple[type[CniRequest], ...]]] = {
    CniAdd: (CniAdd, CniDel, CniCheck),
    CniDel: (CniDel,),
    CniCheck: (CniCheck,),
    CniGc: (CniGc, CniDel),
    CniStatus: (CniStatus,),
}
"""The verbs with which a plugin may call a delegate, by the verb that it is serving. An ADD is undone by a DEL."""


@dataclass(frozen=True, slots=True)
class Right:
    """Who may ask for an operation.

    Attributes:
        text: in words, for people.
        check: raises PluginError for a section that may not; takes the arguments of the operation. None: every section
            may, because the operation reaches nothing but what is the section's own.
    """

    text: str
    check: "Callable[..., None] | None" = None


@dataclass(slots=True)
class Permits:
    """What one section may ask. Any thread may use it.

    Attributes:
        section: its name.
        registry: knows what it serves.
        in_flight: knows the requests that it is serving.
    """

    section: str
    registry: Registry
    in_flight: InFlight
    _refused: set[str] = field(default_factory=set)

    def serves(self, kind: ClaimKind) -> frozenset[str]:
        """Return the names of one kind that the section serves, or serves until its last call has ended."""
        slot = self.registry.slot(self.section)
        instance = slot.loaded or slot.instance
        return frozenset([claim.name for claim in instance.claims if claim.kind == kind])

    def checked(self, operation: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Wrap an operation so that it checks the right of this section first."""
        check = RIGHTS[operation].check
        if check is None:
            return function

        @wraps(function)
        def ask(*arguments: _P.args, **named: _P.kwargs) -> _T:
            try:
                check(self, *arguments, **named)
            except PluginError as error:
                self._log(operation, error)
                raise
            return function(*arguments, **named)

        return ask

    def checked_member(self, name: str, member: _T) -> _T:
        """Return a member of `Host` whose operations are checked."""
        kind = MEMBERS[name]
        methods = {one: self.checked(f"{name}.{one}", getattr(member, one)) for one in _operations_of(kind)}
        checked = type(kind.__name__, (kind,), {one: staticmethod(method) for one, method in methods.items()})
        return cast("_T", checked())

    def _log(self, operation: str, error: PluginError) -> None:
        if operation not in self._refused:  # once: a plugin may ask without end
            self._refused.add(operation)
            LOG.warning("plugin %s was refused %s: %s", self.section, operation, error.message)


def verify(answered: Collection[str]) -> None:
    """Compare the rights with the operations that there are.

    Args:
        answered: those that a plugin in a process can ask for.

    Raises:
        RuntimeError: an operation has no right, or a right has no operation.
    """
    if differences := (operations() ^ RIGHTS.keys()) | (set(answered) - RIGHTS.keys()):
        raise RuntimeError(f"each operation of a Host needs one row in RIGHTS: {', '.join(sorted(differences))}")


def operations() -> frozenset[str]:
    """Return the operations of `Host` and of its members."""
    members = [f"{name}.{one}" for name, kind in MEMBERS.items() for one in _operations_of(kind)]
    return frozenset([*members, *_operations_of(Host)])


def _operations_of(kind: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]


# --- the rights ---------------------------------------------------------------------------------------------------


def _serves(kind: ClaimKind, what: str) -> Callable[..., None]:
    def check(permits: Permits, *_: Any, **__: Any) -> None:
        if not permits.serves(kind):
            raise NotReady(f"section {permits.section!r} serves no {what}, and only sections that do may ask for this")

    return check


def _delegates(permits: Permits, request: CniRequest, *_: Any, **__: Any) -> None:
    """Check that a delegate's request is derived from one that the section is serving."""
    served = [one for one in permits.in_flight.of(permits.section, request.id) if isinstance(one, CniRequest)]
    if not served:
        _serves("cni", "CNI plugin")(permits)
        raise InvalidRequest(
            f"section {permits.section!r} is not serving a CNI request {clip(request.id, 20)!r}; "
            "delegate the request that the hook was given, before the hook returns"
        )
    wrong = [_difference(one, request) for one in served]
    if all(wrong):
        raise InvalidRequest(f"section {permits.section!r} may not delegate this request: {wrong[-1]}")


def _difference(served: CniRequest, asked: CniRequest) -> str:
    """Return what a delegate's request has that the plugin may not choose; empty if there is nothing."""
    allowed = next((verbs for verb, verbs in _VERBS.items() if isinstance(served, verb)), ())
    if not isinstance(asked, allowed):
        told = " or ".join(verb.__name__ for verb in allowed) or "no delegate"
        return f"{type(served).__name__} is being served, which allows {told}, found {type(asked).__name__}"
    if asked.path != served.path:
        return "its CNI_PATH is not that of the request that is being served"
    if not _is_same(asked.host_netns, served.host_netns):
        return "its host namespace is not that of the request that is being served"
    if isinstance(served, CniGc):
        return _ended(served, asked) if isinstance(asked, CniDel) else ""
    if not isinstance(asked, CniAttachmentRequest) or not isinstance(served, CniAttachmentRequest):
        return ""
    if asked.container_id != served.container_id:
        return "its container id is not that of the request that is being served"
    given = _netns(asked)
    if given is not None and not _is_same(given, _netns(served)):
        return "its container's namespace is not that of the request that is being served"
    return ""


def _ended(served: CniGc, asked: CniDel) -> str:
    """Check a DEL that a plugin sends during GC: only an attachment that is not valid any more may be deleted."""
    if asked.netns is not None:
        return "a DEL that GC causes has no namespace"
    if served.valid is None:
        return "the GC that is being served names no valid attachments, so nothing may be deleted"
    if (asked.container_id, asked.ifname) in {(one.container_id, one.ifname) for one in served.valid}:
        return "the attachment is a valid one of the GC that is being served"
    return ""


def _netns(request: CniAttachmentRequest) -> Netns | None:
    netns: Netns | None = getattr(request, "netns", None)
    return netns


def _is_same(one: Netns, other: Netns | None) -> bool:
    if one is other or other is None:
        return one is other
    return one.path == other.path and one.identity == other.identity


def _binds(permits: Permits, namespace: str, name: str, uid: str, node: str) -> None:
    """Check that a Binding is what kube-scheduler has asked this section for."""
    _serves("extender", "scheduler extender")(permits)
    wanted = (namespace, name, uid, node)
    served = [one for one in permits.in_flight.of(permits.section) if isinstance(one, ExtenderBind)]
    if wanted not in [(one.namespace, one.pod, one.uid, one.node) for one in served]:
        raise InvalidRequest(
            f"section {permits.section!r} may not bind pod {clip(namespace, 80)}/{clip(name, 80)} to node "
            f"{clip(node, 80)}: no such extender_bind is being served"
        )


_OWN: Final = Right("every section; it reaches what is the section's own")
_CNI: Final = Right("sections that serve a CNI plugin", _serves("cni", "CNI plugin"))
_EXTENDER: Final = Right("sections that serve a scheduler extender", _serves("extender", "scheduler extender"))
RIGHTS: Final[Mapping[str, Right]] = {
    "journal.write": _OWN,
    "journal.read": _OWN,
    "journal.remove": _OWN,
    "journal.count_as_removed": _OWN,
    "journal.entries": _OWN,
    "journal.is_stale": _OWN,
    "cgroups.lacking": _OWN,
    "cgroups.make": _OWN,
    "cgroups.excess": _OWN,
    "cgroups.remove": _OWN,
    "sockets.keep": _OWN,
    "sockets.names": _OWN,
    "sockets.get": _OWN,
    "sockets.drop": _OWN,
    "refresh_health": _OWN,
    "refresh_cluster": _OWN,
    "refresh": Right("every section; one that does not serve the resource has no effect"),
    "holders": Right("sections that serve devices", _serves("device", "resource")),
    "attachments": _CNI,
    "former_sections": Right(
        "sections with an `ExclusiveClaim`; they get what sections with the same claim and the same `uses` have left",
        _serves("exclusive", "exclusive claim"),
    ),
    "delegate": Right(
        "sections that serve a CNI plugin, for the request that they are serving. They choose the verb (DEL and CHECK "
        "within ADD, DEL within GC), CNI_IFNAME, CNI_ARGS, `prevResult` and the configuration, never CNI_PATH or a "
        "namespace, and the container id only of what has ended, within GC",
        _delegates,
    ),
    "networks.pod": Right("sections that serve a CNI plugin; pods of this node", _CNI.check),
    "networks.definition": _CNI,
    "networks.conflist": _CNI,
    "networks.report": Right("sections that serve a CNI plugin; pods of this node", _CNI.check),
    "networks.hold": _CNI,
    "scheduling.node": _EXTENDER,
    "scheduling.bound": _EXTENDER,
    "scheduling.pod": _EXTENDER,
    "scheduling.bind": Right(
        "sections that serve a scheduler extender, for the `extender_bind` that they are serving", _binds
    ),
}
"""The right of each operation."""
