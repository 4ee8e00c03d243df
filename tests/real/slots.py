"""The extender of a test: its pods say in labels what it shall do; Bindings are its own."""

import json
import ssl
import urllib.request
from pathlib import Path

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl

LABEL = "example.com/slots"


class Slots:
    class Config(BaseModel, extra="forbid"):
        server: str
        token: Path

    def __init__(self, config: Config, host: n.Host) -> None:
        self.config = config

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.ExtenderClaim("slots")]

    @hookimpl
    def extender_filter(self, request: n.ExtenderFilter) -> n.ExtenderVerdict:
        allowed = request.pod["metadata"].get("labels", {}).get("on", "alpha_beta_gamma").split("_")
        small = {name: "its slots are too small" for name in request.nodes if name == "gamma" and name not in allowed}
        left = tuple(name for name in request.nodes if name in allowed)
        others = [name for name in request.nodes if name not in left and name not in small]
        return n.ExtenderVerdict(nodes=left, failed=dict.fromkeys(others, "its slots are taken"), unresolvable=small)

    @hookimpl
    def extender_prioritize(self, request: n.ExtenderPrioritize) -> dict[str, int]:
        labels = {name: (node or {}).get("metadata", {}).get("labels", {}) for name, node in request.nodes.items()}
        return {name: 10 if name == "beta" or labels[name].get(LABEL) == "best" else 0 for name in request.nodes}

    @hookimpl
    def extender_preempt(self, request: n.ExtenderPreempt) -> dict[str, n.ExtenderVictims]:
        return {name: victims for name, victims in request.victims.items() if name == "beta"}

    @hookimpl
    def extender_bind(self, request: n.ExtenderBind) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": request.node}
        metadata = {"name": request.pod, "uid": request.uid, "annotations": {LABEL: f"bound to {request.node}"}}
        url = f"{self.config.server}/api/v1/namespaces/{request.namespace}/pods/{request.pod}/binding"
        headers = {"Authorization": f"Bearer {self.config.token.read_text()}", "Content-Type": "application/json"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        trust = ssl._create_unverified_context()  # its certificate is its own, on loopback
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        with urllib.request.urlopen(asked, timeout=3, context=trust):
            pass
