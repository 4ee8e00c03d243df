"""Which of several plugins serves a name that they all claim.

Owns: the one rule: the first in the configuration wins. So a reload ends in the same state as a restart.
Refuses: to register plugins, and to know what a claim is for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodeplug.contract.values import Claim, ExclusiveClaim
from nodeplug.hosting.slot import Instance


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which plugins may serve and which may not, by section name.

    Attributes:
        accepted: entering plugins without a conflict.
        refused: why other entering plugins are refused; their predecessors stay.
        displaced: why plugins that are already present must go.
        owners: the plugin that has what a refused or displaced one claims.
    """

    accepted: list[Instance] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    displaced: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)


def settle(present: Mapping[str, Instance], entering: Iterable[Instance], order: Sequence[str]) -> Verdict:
    """Choose between plugins that are present and those that enter, which replace a present one of the same name.

    Sections that are not in `order` come last, with the present ones first.
    """
    ranks = {name: rank for rank, name in enumerate(order)}
    chosen = {one.name: one for one in entering}
    verdict = Verdict()
    while True:
        staying = [one for name, one in present.items() if name not in chosen and name not in verdict.displaced]
        found = _first_conflict(sorted([*staying, *chosen.values()], key=lambda one: ranks.get(one.name, len(ranks))))
        if found is None:
            verdict.accepted.extend(chosen.values())
            return verdict
        loser, owner, text = found
        verdict.owners[loser.name] = owner.name
        if chosen.pop(loser.name, None) is not None:
            verdict.refused[loser.name] = text
        else:
            verdict.displaced[loser.name] = text


def _first_conflict(ranked: Iterable[Instance]) -> tuple[Instance, Instance, str] | None:
    owners = dict[Claim, Instance]()
    for one in ranked:
        for claim in one.claims:
            if claim in owners:
                text = f"{one.who} claims {claim}, which {owners[claim].who} owns: it comes first in the configuration"
                advice = claim.advice if isinstance(claim, ExclusiveClaim) else "disable one of the two"
                return one, owners[claim], f"{text}; {advice}"
        owners.update(dict.fromkeys(one.claims, one))
    return None
