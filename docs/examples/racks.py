"""A small scheduler extender: no pod goes to a rack that is being repaired, and each goes to its own rack if it can."""

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import ExtenderClaim, ExtenderFilter, ExtenderPrioritize, ExtenderVerdict, Host, hookimpl


class RacksConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    racks: dict[str, str] = Field(description="the rack of each node")
    repaired: set[str] = Field(default=set(), description="racks that are being repaired")


class Racks:
    Config = RacksConfig

    def __init__(self, config: RacksConfig, host: Host) -> None:
        self.config = config

    @hookimpl
    def claims(self) -> list[ExtenderClaim]:
        return [ExtenderClaim("racks")]

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        out = [node for node in request.nodes if self.config.racks.get(node) in self.config.repaired]
        return ExtenderVerdict(
            nodes=tuple(node for node in request.nodes if node not in out),
            unresolvable=dict.fromkeys(out, "its rack is being repaired"),
        )

    @hookimpl
    def extender_prioritize(self, request: ExtenderPrioritize) -> dict[str, int]:
        wanted = request.pod["metadata"].get("labels", {}).get("rack")
        return {node: 10 for node in request.nodes if self.config.racks.get(node) == wanted}
