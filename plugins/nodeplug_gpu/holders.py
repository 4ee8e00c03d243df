"""Who holds devices: a container, or a claim of which nobody has said yet whose it is.

Owns: the names of holders, and what each holds by all that is told of it: no id twice.
Refuses: to ask who holds what (`allocations` does), and to add up what several hold: containers may share a claim.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeplug import DeviceId, Holding


@dataclass(frozen=True, slots=True, order=True)
class Container:
    """A container, as podresources names it; or a claim, as long as it names no container that uses the claim.

    Attributes:
        namespace: of the pod, or of the claim.
        pod: its name; empty for a claim.
        name: of the container; empty for a claim.
        claim: the claim's name; empty for a container.
    """

    namespace: str
    pod: str
    name: str
    claim: str = ""

    def __str__(self) -> str:
        """Return `namespace/pod/container`, or `claim namespace/name`."""
        return f"{self.pod_in_words}/{self.name}" if not self.claim else self.pod_in_words

    @property
    def pod_in_words(self) -> str:
        """Return `namespace/pod`, or `claim namespace/name`."""
        return f"claim {self.namespace}/{self.claim}" if self.claim else f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class HeldIds:
    """What one holder has of a resource.

    Attributes:
        holder: who.
        ids: each once.
        claims: by which it has them, `namespace/name`; none where a device plugin of kubelet's gave them.
    """

    holder: Container
    ids: tuple[DeviceId, ...]
    claims: tuple[str, ...] = ()


def holder_of(holding: Holding) -> Container:
    """Return who holds something."""
    if holding.claim is not None and not holding.pod:
        return Container(holding.namespace, "", "", holding.claim.name)
    return Container(holding.namespace, holding.pod, holding.container)


def by_holder(holdings: Iterable[Holding]) -> Sequence[HeldIds]:
    """Return what each holder has of one resource, in the order in which they are told of first."""
    found: dict[Container, tuple[dict[DeviceId, None], dict[str, None]]] = {}
    for one in holdings:
        ids, claims = found.setdefault(holder_of(one), ({}, {}))
        ids.update(dict.fromkeys(one.ids))
        if one.claim is not None:
            claims[f"{one.claim.namespace}/{one.claim.name}"] = None
    return [HeldIds(holder, tuple(ids), tuple(claims)) for holder, (ids, claims) in found.items()]
