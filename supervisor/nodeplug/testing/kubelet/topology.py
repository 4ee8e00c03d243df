"""Kubelet's topology manager, for devices only, with container scope: which NUMA nodes fit and are acceptable.

Owns: the hints of one resource, their merger, and the three policies that have any.
Refuses: other hint providers (CPUs, memory), and pod scope.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Final, Literal

from nodeplug.testing.kubelet.allocation import AdmissionError, DeviceTable

Policy = Literal["none", "best-effort", "restricted", "single-numa-node"]
Nodes = frozenset[int]
LOCALITY: Final = "Resources cannot be allocated with Topology locality"
"""What a pod is told whose devices do not lie as the policy wants (reason TopologyAffinityError)."""


@dataclass(frozen=True, slots=True)
class Hint:
    """NUMA nodes that could serve a request; preferred when no fewer nodes could.

    Attributes:
        nodes: None when there is no such set.
        preferred: whether it is one of the smallest.
    """

    nodes: Nodes | None
    preferred: bool


def hints(
    table: DeviceTable, machine: Nodes, available: AbstractSet[str], reusable: AbstractSet[str], size: int
) -> list[Hint]:
    """Return the hints of one resource: every set of nodes whose devices are enough.

    Args:
        table: all devices of the resource.
        machine: the NUMA nodes of the machine.
        available: free and healthy ids.
        reusable: ids that have to be used, which a set must reach.
        size: units.
    """
    everything = {**table.healthy, **table.unhealthy}
    subsets = chain.from_iterable(combinations(sorted(machine), count) for count in range(1, len(machine) + 1))
    fewest, found = len(machine), []
    for nodes in map(frozenset, subsets):
        if sum(1 for near in everything.values() if near & nodes) >= size:
            fewest = min(fewest, len(nodes))
        far = any(everything.get(name) and not everything[name] & nodes for name in reusable)
        near = sum(1 for name in available | reusable if everything.get(name, frozenset()) & nodes)
        if not far and near >= size:
            found.append(nodes)
    return [Hint(nodes, len(nodes) == fewest) for nodes in found]


def settle(policy: Policy, machine: Nodes, offers: list[list[Hint] | None]) -> Nodes | None:
    """Merge what several resources offer, and return the nodes to align with.

    Args:
        policy: what is acceptable.
        machine: the NUMA nodes of the machine.
        offers: the hints of each resource; None for one without topology, an empty list for one that cannot be served.

    Returns:
        The nodes, or None for no alignment.

    Raises:
        AdmissionError: the policy is strict and the devices are not aligned.
    """
    if policy == "none":
        return None
    lists = [
        [Hint(None, preferred=True)] if offer is None else offer or [Hint(None, preferred=False)] for offer in offers
    ]
    single = policy == "single-numa-node"
    if single:
        lists = [
            [hint for hint in known if hint.preferred and (hint.nodes is None or len(hint.nodes) == 1)]
            for known in lists
        ]
    best = Hint(machine, preferred=False)
    for combination in product(*lists):
        nodes = machine.intersection(*(hint.nodes for hint in combination if hint.nodes is not None))
        hint = Hint(nodes, all(hint.preferred for hint in combination))
        narrower = len(nodes) < len(best.nodes or machine)
        if nodes and (hint.preferred > best.preferred or (hint.preferred == best.preferred and narrower)):
            best = hint
    if policy != "best-effort" and not best.preferred:
        raise AdmissionError(LOCALITY)
    return None if single and best.nodes == machine else best.nodes
