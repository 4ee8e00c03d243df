"""What of each card's memory is free on a node: the annotation that says so, as a value and as text.

Owns: the form of `nodeplug.io/gpu-mem`, version 1, both ways; docs/node-in-the-api.md describes it for other programs.
Refuses: I/O, and everything else of this plugin: whoever decides about pods elsewhere imports this and `placement`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

VERSION: Final = 1
DOMAIN: Final = "nodeplug.io"
_FIRST: Final = "aliyun.com/gpu-mem"
_LONGEST: Final = 63
SETTLES: Final = 3.0
"""Seconds for which a node still chooses cards by its former figures after it has told new ones: until those are seen,
and until pods have come that were placed by the former ones."""
_POLICIES: Final = ("binpack", "spread")


class Unreadable(ValueError):
    """The annotation has another form; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class FreeCard:
    """One card.

    Attributes:
        key: what ids of its units begin with; a choice between equal cards is in the order of keys.
        uuid: of the card.
        minor: N of /dev/nvidiaN, gpushare's index.
        units: of the card, allocated ones included.
        free: units that no pod of `FreeMemory.pods` holds; they can be allocated only while it is healthy.
        healthy: a container may get units of it.
    """

    key: str
    uuid: str
    minor: int
    units: int
    free: int
    healthy: bool = True


@dataclass(frozen=True, slots=True, order=True)
class PodName:
    """A pod whose units are not free.

    Attributes:
        namespace: of the pod; `?` where kubelet has told the uid alone.
        name: of the pod, or its uid where that alone is known.
        uid: of the pod; empty if it is not known, as it is as a rule: podresources has none.
    """

    namespace: str
    name: str
    uid: str = ""

    def means(self, namespace: str, name: str, uid: str) -> bool:
        """Whether this is a pod; without a UID, whichever has the name."""
        if self.namespace == "?":
            return bool(uid) and self.name == uid
        return (self.namespace, self.name) == (namespace, name) and (not self.uid or not uid or self.uid == uid)

    def __str__(self) -> str:
        """Return `namespace/name`, or `namespace/name/uid`."""
        return "/".join(filter(None, (self.namespace, self.name, self.uid)))


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """One resource of one node, at one moment.

    What a pod holds is in the figures if, and only if, the pod is in `pods`. So what is free just now are these
    figures without what pods will get that are bound to the node and not among `pods`.

    Attributes:
        resource: whose units these are.
        seq: larger in what was written later, also after a restart of the daemon.
        unit: bytes of a unit.
        policy: how a card is chosen among those that fit: `binpack` or `spread`, as `placement` has them.
        cards: all that are advertised, in the order of their minors.
        pods: whose units are not free, in order.
        held: units of each of `pods` by card, in the same order; empty if the writer did not say.
    """

    resource: str
    seq: int
    unit: int
    policy: str
    cards: tuple[FreeCard, ...]
    pods: tuple[PodName, ...] = ()
    held: tuple[Mapping[str, int], ...] = ()

    def names(self, namespace: str, name: str, uid: str = "") -> bool:
        """Whether a pod is among those whose units are not free: by its UID where it has one, else by its name."""
        return any(one.means(namespace, name, uid) for one in self.pods)


def annotation_of(resource: str) -> str:
    """Return the name of a resource's annotation: `nodeplug.io/gpu-mem` for gpushare's, others with their domain."""
    domain, _, name = resource.partition("/")
    if resource == _FIRST:
        return f"{DOMAIN}/{name}"
    whole = f"{name}.{domain}"
    if len(whole) > _LONGEST:
        whole = f"{name[: _LONGEST - 9]}.{sha256(resource.encode()).hexdigest()[:8]}"
    return f"{DOMAIN}/{whole}"


def encode(free: FreeMemory) -> str:
    """Write the annotation: JSON in one line, keys in this order."""
    cards = [
        {
            "key": one.key,
            "uuid": one.uuid,
            "minor": one.minor,
            "units": one.units,
            "free": one.free,
            "healthy": one.healthy,
        }
        for one in free.cards
    ]
    document = {
        "v": VERSION,
        "seq": free.seq,
        "resource": free.resource,
        "unit": free.unit,
        "policy": free.policy,
        "cards": cards,
        "pods": [str(one) for one in free.pods],
    }
    if free.held:
        document["held"] = [dict(one) for one in free.held]
    return json.dumps(document, separators=(",", ":"))


def decode(text: str) -> FreeMemory:
    """Read the annotation; keys that this version does not know are passed over.

    Raises:
        Unreadable: it is no JSON, of another version, or has something else where a figure should be.
    """
    document = _document(text)
    pods = tuple(map(_pod, _get(document, "pods", list)))
    held = tuple(map(_held, _get(document, "held", list))) if "held" in document else ()
    if held and len(held) != len(pods):
        raise Unreadable(f"it has {len(pods)} pods, and says of {len(held)} what they hold")
    return replace(_figures(document), pods=pods, held=held)


def skim(text: str) -> tuple[FreeMemory, frozenset[str]]:
    """Read the annotation but for what each pod holds; several times a second, of thousands of nodes.

    Returns:
        The figures without `pods` and `held`; and the names of the pods as they are written.

    Raises:
        Unreadable: as `decode`, but for what was not read.
    """
    document = _document(text)
    names = _get(document, "pods", list)
    for one in names:
        if type(one) is not str or not 0 < one.count("/") < 3:
            raise Unreadable(f"{one!r} is no pod: namespace/name or namespace/name/uid")
    return _figures(document), frozenset(names)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Unreadable(f"it is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("v") != VERSION:
        found = document.get("v") if isinstance(document, dict) else None
        raise Unreadable(f"it has version {found!r}, and this reader knows {VERSION}")
    return document


def _figures(document: dict[str, Any]) -> FreeMemory:
    cards = tuple(map(_card, _get(document, "cards", list)))
    if len({one.key for one in cards}) != len(cards):
        raise Unreadable("two of its cards have one key")
    policy = _get(document, "policy", str)
    if policy not in _POLICIES:
        raise Unreadable(f"its policy is {policy!r}, not one of {', '.join(_POLICIES)}")
    return FreeMemory(
        resource=_get(document, "resource", str),
        seq=_count(document, "seq"),
        unit=_count(document, "unit", 1),
        policy=policy,
        cards=cards,
    )


def _card(found: Any) -> FreeCard:
    if not isinstance(found, dict):
        raise Unreadable(f"one of its cards is {found!r}")
    units, free = _count(found, "units"), _count(found, "free")
    if free > units:
        raise Unreadable(f"a card has {units} units, and {free} of them are free")
    return FreeCard(
        key=_get(found, "key", str),
        uuid=_get(found, "uuid", str),
        minor=_count(found, "minor"),
        units=units,
        free=free,
        healthy=_get(found, "healthy", bool),
    )


def _pod(found: Any) -> PodName:
    parts = found.split("/") if isinstance(found, str) else []
    if len(parts) not in {2, 3} or not all(parts):
        raise Unreadable(f"{found!r} is no pod: namespace/name or namespace/name/uid")
    return PodName(*parts)


def _held(found: Any) -> Mapping[str, int]:
    if not isinstance(found, dict):
        raise Unreadable(f"what one of its pods holds is {found!r}")
    return {card: _count(found, card) for card in found}


def _get(found: dict[str, Any], key: str, kind: type[Any]) -> Any:
    value = found.get(key)
    if type(value) is not kind:
        raise Unreadable(f"its {key!r} is {value!r}")
    return value


def _count(found: dict[str, Any], key: str, least: int = 0) -> int:
    value: int = _get(found, key, int)
    if value < least:
        raise Unreadable(f"its {key!r} is {value}, at least {least} is due")
    return value
