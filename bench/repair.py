"""From the moment in which somebody removes something of a network until it is back.

Each network has a bridge of its own and one container, and loses four things, one after the other: fewer than after
which the daemon would leave it alone. Owns: networks, damage, and how each is seen to be back, by ip(8) and nft(8).
Refuses: to run outside a network namespace of its own. The time includes the start of the program that does the damage.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cni import Engine
from bench.measure import Summary

_PATIENCE: Final = 15.0
_DAMAGE: Final[Mapping[str, tuple[str, str, str]]] = {
    "address": ("ip address del {gateway}/24 dev {bridge}", "ip -o -4 address show dev {bridge}", "{gateway}/24"),
    "route": ("ip route del {subnet} dev {bridge}", "ip route show {subnet} dev {bridge}", "proto kernel"),
    "rules": ("nft flush ruleset", "nft list set inet nodeplug_masquerade net_{subnet}", "elements"),
    "bridge": ("ip link del {bridge}", "ip -o -4 address show dev {bridge}", "{gateway}/24"),
}
"""What is done, and what shows with which text that it is undone."""


@dataclass(frozen=True, slots=True)
class Network(Engine):
    """A network with a bridge and a subnet of its own."""

    def config(self) -> dict[str, Any]:
        """Return the plugin object of its network."""
        ipam = {"type": "host-local", "dataDir": str(self.data), "ranges": [[{"subnet": self.words["subnet"]}]]}
        named = {"name": f"bench-{self.words['bridge']}", "bridge": self.words["bridge"]}
        return {**Engine.config(self), **named, "ipam": ipam}

    @property
    def words(self) -> Mapping[str, str]:
        """What commands are about."""
        start = f"10.200.{self.number}"
        return {"bridge": f"repair{self.number}", "subnet": f"{start}.0/24", "gateway": f"{start}.1"}


def measure(engine: Engine, paths: Sequence[Path], *, quick: bool) -> Summary:
    """Return how long it takes until something is back, all kinds of damage together.

    Args:
        engine: ours.
        paths: of container namespaces.
        quick: whether few networks are damaged.
    """
    seconds = []
    for number, path in enumerate(paths[: 1 if quick else 25]):
        where = engine.data.parent / "repair"
        network = Network(engine.kind, True, engine.folder, engine.bridge_type, number, where)
        previous = json.loads(network.call("ADD", "repaired", path).stdout)
        time.sleep(1.0)  # whoever has just been attached is not looked for
        try:
            seconds += [_back(network, *_DAMAGE[kind]) for kind in _DAMAGE]
        finally:
            network.call("DEL", "repaired", path, previous)
            subprocess.run(["ip", "link", "delete", network.words["bridge"]], check=False, capture_output=True)
    return Summary.of(seconds)


def _back(network: Network, *told: str) -> float:
    damage, look, sign = (one.format(**network.words) for one in told)
    started = time.perf_counter()
    subprocess.run(damage.split(), check=True)
    while sign not in subprocess.run(look.split(), capture_output=True, text=True, check=False).stdout:
        if time.perf_counter() - started > _PATIENCE:
            raise RuntimeError(f"{_PATIENCE:g} s after {damage!r}, {look!r} shows no {sign!r}")
        time.sleep(0.005)
    return time.perf_counter() - started
