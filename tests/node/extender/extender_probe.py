"""An extender that does what the pod's labels say."""

import os
import time
from collections.abc import Mapping

import nodeplug as n
from nodeplug import hookimpl


class Probe:
    def __init__(self, config: object, host: n.Host) -> None:
        self._host = host

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.ExtenderClaim("deep/probe")]

    @hookimpl
    def extender_filter(self, request: n.ExtenderFilter) -> n.ExtenderVerdict:
        labels = request.pod["metadata"]["labels"]
        if "sleep" in labels:
            time.sleep(float(labels["sleep"]))
        if "raise" in labels:
            raise n.Exhausted(labels["raise"])
        if "stray" in labels:
            raise ValueError(labels["stray"])
        if "invent" in labels:
            return n.ExtenderVerdict(nodes=("nowhere",))
        whole = [name for name, node in request.nodes.items() if node is not None]
        return n.ExtenderVerdict(nodes=tuple(whole[::2] or request.nodes))

    @hookimpl
    def extender_prioritize(self, request: n.ExtenderPrioritize) -> Mapping[str, int]:
        return dict.fromkeys(request.nodes, 11 if "high" in request.pod["metadata"]["labels"] else 1)

    @hookimpl
    def extender_preempt(self, request: n.ExtenderPreempt) -> Mapping[str, n.ExtenderVictims]:
        kept = {name: victims for name, victims in request.victims.items() if name != "b"}
        return {name: n.ExtenderVictims(pods=victims.pods[:1]) for name, victims in kept.items()}

    @hookimpl
    def extender_bind(self, request: n.ExtenderBind) -> None:
        if request.node == "full":
            raise n.Exhausted("node full has no card that is free")
        (self._host.state_dir / request.uid).write_text(f"{request.namespace}/{request.pod} {request.node}")

    @hookimpl
    def inspect(self) -> Mapping[str, object]:
        return {"pid": os.getpid()}
