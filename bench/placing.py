"""A scheduler extender for the benchmark: it answers at once."""

from collections.abc import Mapping, Sequence

from nodeplug import Claim, ExtenderClaim, ExtenderFilter, ExtenderPrioritize, ExtenderVerdict, Host, hookimpl


class Placing:
    """Leaves every second node, and likes all alike."""

    def __init__(self, config: dict[str, object], host: Host) -> None:
        pass

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the one extender."""
        return [ExtenderClaim("placing")]

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        """Refuse half of the nodes."""
        names = list(request.nodes)
        return ExtenderVerdict(nodes=tuple(names[::2]), failed=dict.fromkeys(names[1::2], "it is odd"))

    @hookimpl
    def extender_prioritize(self, request: ExtenderPrioritize) -> Mapping[str, int]:
        """Score every node."""
        return dict.fromkeys(request.nodes, 5)
