"""kube-scheduler's `extender/v1` on the wire: JSON becomes requests of the contract, and answers become JSON.

Owns: the four verbs, their field names (Go's: the types have no JSON tags), and what an answer may say about the
request. kube-scheduler would take much of what is wrong silently: a null `NodeNames` for no node at all, a missing
reason for none, a score of 1000 as it is.
Refuses: I/O and hooks. Error messages name nodes, never what is in a pod.

Sources: kube-scheduler 1.36, pkg/scheduler/extender.go; staging/k8s.io/kube-scheduler/extender/v1/types.go.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from nodeplug.contract.errors import (
    InvalidRequest,
    NotFound,
    PluginError,
    Undecodable,
    clip,
    wire,
    with_request,
)
from nodeplug.contract.values import (
    ExtenderBind,
    ExtenderFilter,
    ExtenderPreempt,
    ExtenderPrioritize,
    ExtenderRequest,
    ExtenderVerdict,
    ExtenderVictims,
)
from nodeplug.extender import documents

HIGHEST: Final = 10
"""MaxExtenderPriority."""
_OK: Final = 200
_SHOWN: Final = 3
"""Names that a message shows."""
_REASON: Final = 1024
"""Characters of a reason: all of them stand in one event of at most 1024 (events.k8s.io, `note`)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of kube-scheduler.

    Attributes:
        request: for the hook.
        written: the nodes by name, as the scheduler wrote them; None where it sends names alone.
    """

    request: ExtenderRequest
    written: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb.

    Attributes:
        name: the last part of the URL.
        hook: that answers it.
        option: of an extender in kube-scheduler's configuration, with which it asks for the verb.
        decode: from the claim and a body.
        encode: of an answer, whose class was checked.
        refusal: the answer that says an error; None if the verb's answer has no field for one.
    """

    name: str
    hook: str
    option: str
    decode: Callable[[str, bytes], Asked]
    encode: Callable[[Asked, Any], bytes]
    refusal: Callable[[str], bytes] | None = None


def verb(name: str) -> Verb:
    """Return a verb; raise NotFound, naming those that there are."""
    try:
        return VERBS[name]
    except KeyError:
        raise NotFound(f"there is no verb {clip(name, 40)!r}; there are {', '.join(VERBS)}") from None


def encode_error(verb: Verb, error: PluginError) -> tuple[int, bytes]:
    """Return status and body that tell an error: kube-scheduler reads the body of a 200 alone."""
    text = clip(with_request(str(error), error))
    if verb.refusal is not None:
        return _OK, verb.refusal(text)
    return wire(error).http, text.encode(errors="backslashreplace") + b"\n"


# --- requests -----------------------------------------------------------------------------------------------------


def _decode_filter(claim: str, body: bytes) -> Asked:
    pod, nodes, written = _of_nodes(body)
    return Asked(ExtenderFilter(claim=claim, pod=pod, nodes=nodes), written)


def _decode_prioritize(claim: str, body: bytes) -> Asked:
    pod, nodes, written = _of_nodes(body)
    return Asked(ExtenderPrioritize(claim=claim, pod=pod, nodes=nodes), written)


_Nodes = Mapping[str, Mapping[str, Any] | None]


def _of_nodes(body: bytes) -> tuple[Mapping[str, Any], _Nodes, Mapping[str, str] | None]:
    """Read ExtenderArgs: one of NodeNames and Nodes is null (`nodeCacheCapable`)."""
    document = documents.read(body, "nodes")
    pod, names, nodes = _pod(document), document.get("nodenames"), document.get("nodes")
    if names is not None:
        return pod, dict.fromkeys(_texts("NodeNames", names)), None
    if nodes is None:
        raise InvalidRequest("neither NodeNames nor Nodes is in the request; kube-scheduler sends one of them")
    if not isinstance(nodes, list):
        raise _wrong("Nodes", nodes, "a NodeList")
    whole: dict[str, Mapping[str, Any]] = {}
    written: dict[str, str] = {}
    for value, text in nodes:
        name = _named(value)
        whole[name], written[name] = value, text
    return pod, whole, written


def _decode_preempt(claim: str, body: bytes) -> Asked:
    """Read ExtenderPreemptionArgs: whole victims, or their UIDs alone with `nodeCacheCapable`."""
    document = documents.read(body)
    pod, known, meta = _pod(document), document.get("nodenametovictims"), document.get("nodenametometavictims")
    field, found = ("NodeNameToMetaVictims", meta) if known is None else ("NodeNameToVictims", known)
    if not isinstance(found, dict):
        raise _wrong(field, found, "an object with victims by node")
    victims = {node: _victims(field, one, whole=known is not None) for node, one in found.items()}
    return Asked(ExtenderPreempt(claim=claim, pod=pod, victims=victims))


def _victims(field: str, found: object, *, whole: bool) -> ExtenderVictims:
    members = _folded(f"{field} of a node", found)
    pods = members.get("pods") or []
    violations = members.get("numpdbviolations", 0)
    if not isinstance(pods, list):
        raise _wrong(f"Pods in {field}", pods, "a list")
    if type(violations) is not int:
        raise _wrong(f"NumPDBViolations in {field}", violations, "a number")
    if not whole:
        uids = tuple(_text(f"UID in {field}", _folded(f"a pod in {field}", one).get("uid")) for one in pods)
        return ExtenderVictims(pods=uids, pdb_violations=violations)
    objects = {_text(f"metadata.uid of a pod in {field}", _metadata(one).get("uid")): one for one in pods}
    return ExtenderVictims(pods=tuple(objects), pdb_violations=violations, objects=objects)


def _decode_bind(claim: str, body: bytes) -> Asked:
    document = documents.read(body)
    namespace, pod, uid, node = (
        _text(name, document.get(name.lower())) for name in ("PodNamespace", "PodName", "PodUID", "Node")
    )
    return Asked(ExtenderBind(claim=claim, namespace=namespace, pod=pod, uid=uid, node=node))


def _pod(document: Mapping[str, Any]) -> Mapping[str, Any]:
    pod = document.get("pod")
    if not isinstance(pod, dict):
        raise _wrong("Pod", pod, "a v1 Pod")
    return pod


def _metadata(found: object) -> Mapping[str, Any]:
    metadata = found.get("metadata") if isinstance(found, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _named(node: object) -> str:
    return _text("metadata.name of a node in Nodes", _metadata(node).get("name"))


def _folded(what: str, found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(what, found, "an object")
    return {name.lower(): value for name, value in found.items()}


def _text(what: str, found: object) -> str:
    if not isinstance(found, str) or not found:
        raise _wrong(what, found, "a text")
    return found


def _texts(what: str, found: object) -> list[str]:
    if not isinstance(found, list):
        raise _wrong(what, found, "a list of texts")
    for one in found:
        if not isinstance(one, str) or not one:
            raise _wrong(f"an item of {what}", one, "a text")
    return found


def _wrong(what: str, found: object, due: str) -> InvalidRequest:
    kinds = {type(None): "null or absent", dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    named = "empty" if found == "" else kinds.get(type(found), "a number")
    return Undecodable(f"{what} is {named}; kube-scheduler sends {due}")


# --- answers ------------------------------------------------------------------------------------------------------


def _encode_filter(asked: Asked, verdict: ExtenderVerdict) -> bytes:
    request = asked.request
    assert isinstance(request, ExtenderFilter)  # noqa: S101 - for the type checker: its own decoder made it
    who = f"extender_filter of {request.claim!r}"
    nodes = tuple(dict.fromkeys(verdict.nodes))
    reasons = {f"{field} of {who}": _by_node(who, field, verdict) for field in ("failed", "unresolvable")}
    for what, names in ((f"nodes of {who}", nodes), *reasons.items()):
        _refuse_unknown(what, names, request.nodes)
    failed, unresolvable = reasons.values()
    if both := [name for name in nodes if name in failed or name in unresolvable]:
        raise PluginError(f"{who} returned {_listing(both)} as nodes that can run the pod, and as some that cannot")
    taken = {*nodes, *failed, *unresolvable}
    failed |= {name: "" for name in request.nodes if name not in taken}
    return _filtered(
        nodes=None if asked.written is None else [asked.written[name] for name in nodes],
        names=nodes,
        failed=_shown(failed, request.claim),
        unresolvable=_shown(unresolvable, request.claim),
    )


def silent(claim: str) -> str:
    """Return what is told of a node of which the plugin says nothing."""
    return f"the extender {claim} gave no reason"


def _filtered(
    *,
    nodes: Iterable[str] | None = None,
    names: Iterable[str] = (),
    failed: Mapping[str, str] = MappingProxyType({}),
    unresolvable: Mapping[str, str] = MappingProxyType({}),
    error: str = "",
) -> bytes:
    """Write an ExtenderFilterResult. `NodeNames` is never null: kube-scheduler would take that for no node at all."""
    rest = {
        "NodeNames": list(names),
        "FailedNodes": dict(failed),
        "FailedAndUnresolvableNodes": dict(unresolvable),
        "Error": error,
    }
    whole = "null" if nodes is None else f'{{"metadata":{{}},"items":[{",".join(nodes)}]}}'
    return b'{"Nodes":%b,%b' % (whole.encode(), _json(rest)[1:])


def _by_node(who: str, field: str, verdict: ExtenderVerdict) -> dict[str, Any]:
    found: object = getattr(verdict, field)
    if not isinstance(found, Mapping):
        raise PluginError(f"{who} returned a {type(found).__name__} as {field}; return a dict of reasons by node")
    return dict(found)


def _shown(reasons: Mapping[str, Any], claim: str) -> dict[str, str]:
    """Return the reasons as they are told; hundreds of nodes have the same few."""
    told = {reason: _reason(reason, claim) for reason in set(map(_checked, reasons.values()))}
    return {name: told[reason] for name, reason in reasons.items()}


def _checked(reason: object) -> str:
    if not isinstance(reason, str):
        raise PluginError(f"extender_filter returned a {type(reason).__name__} as the reason of a node; return a text")
    return reason


def _reason(reason: str, claim: str) -> str:
    return clip(reason, _REASON) if reason.strip() else silent(claim)


def _encode_prioritize(asked: Asked, scores: Mapping[str, int]) -> bytes:
    request = asked.request
    assert isinstance(request, ExtenderPrioritize)  # noqa: S101 - for the type checker: its own decoder made it
    who = f"extender_prioritize of {request.claim!r}"
    _refuse_unknown(who, scores, request.nodes)
    for name, score in scores.items():
        if not isinstance(score, int) or not 0 <= score <= HIGHEST:
            raise PluginError(
                f"{who} returned {clip(repr(score), 40)} for {name!r}; return whole numbers from 0 to {HIGHEST}"
            )
    return _json([{"Host": name, "Score": int(scores.get(name, 0))} for name in request.nodes])


def _encode_preempt(asked: Asked, victims: Mapping[str, ExtenderVictims]) -> bytes:
    request = asked.request
    assert isinstance(request, ExtenderPreempt)  # noqa: S101 - for the type checker: its own decoder made it
    who = f"extender_preempt of {request.claim!r}"
    _refuse_unknown(who, victims, request.victims)
    for name, one in victims.items():
        if not isinstance(one, ExtenderVictims):
            raise PluginError(f"{who} returned a {type(one).__name__} for {name!r}; return an ExtenderVictims")
        if not all(isinstance(uid, str) and uid for uid in one.pods) or one.pdb_violations < 0:
            raise PluginError(f"{who} returned for {name!r} a victim without UID, or less than no violation")
    return _json(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in one.pods], "NumPDBViolations": one.pdb_violations}
                for name, one in victims.items()
            }
        }
    )


def _encode_bind(_: Asked, __: None) -> bytes:
    return _bound()


def _bound(error: str = "") -> bytes:
    return _json({"Error": error})


def _refuse_unknown(what: str, names: Iterable[object], asked: Mapping[str, Any]) -> None:
    """Raise PluginError for names that were not asked about: kube-scheduler drops the whole answer for one."""
    found = list(names)
    try:
        unknown = [] if asked.keys() >= set(found) else [name for name in found if name not in asked]
    except TypeError:  # a plugin's name may be anything
        unknown = [name for name in found if not isinstance(name, str)]
    if unknown:
        raise PluginError(
            f"{what}: the scheduler did not ask about {_listing(unknown)}; return names of request.nodes, as they are"
        )


def _listing(names: "list[Any]") -> str:
    shown = ", ".join(clip(repr(name), 80) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _json(value: object) -> bytes:
    try:
        return to_json(value)  # several times faster than `json` with hundreds of names
    except PydanticSerializationError:  # half a pair of surrogates, which JSON can escape and UTF-8 cannot have
        return json.dumps(value, separators=(",", ":")).encode()


VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Verb(
                "filter",
                "extender_filter",
                "filterVerb",
                _decode_filter,
                _encode_filter,
                lambda text: _filtered(error=text),
            ),
            Verb("prioritize", "extender_prioritize", "prioritizeVerb", _decode_prioritize, _encode_prioritize),
            Verb("preempt", "extender_preempt", "preemptVerb", _decode_preempt, _encode_preempt),
            Verb("bind", "extender_bind", "bindVerb", _decode_bind, _encode_bind, _bound),
        )
    }
)
