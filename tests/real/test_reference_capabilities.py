"""What a runtime asks for by capabilities, its keys in any letter case: the reference's plugins and ours do the same.

containerd writes `HostPort`, CRI-O and podman `hostPort`; Go's decoder, which the reference has, takes any.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import Side, node_with, prepare, twins, unmeant

from nodeplug.testing import ScratchNode

PLUGINS = ("bridge", "host-local", "portmap", "bandwidth", "tuning")
MAC = "02:00:00:00:00:07"
ASKED: Mapping[str, dict[str, Any]] = {
    "bridge": {
        "ips": ["10.78.0.9/24"],
        "ipRanges": [[{"subnet": "10.78.0.0/24", "rangeStart": "10.78.0.5", "rangeEnd": "10.78.0.20"}]],
        "mac": MAC,
    },
    "portmap": {
        "portMappings": [
            {"hostPort": 18080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 18081, "containerPort": 81, "protocol": "UDP", "hostIP": "127.0.0.1"},
        ]
    },
    "bandwidth": {
        "bandwidth": {"ingressRate": 10**7, "ingressBurst": 10**6, "egressRate": 10**7, "egressBurst": 10**6}
    },
    "tuning": {"mac": "02:00:00:00:00:08"},
}
SPELLINGS: Mapping[str, Callable[[str], str]] = {
    "as-specified": str,
    "capital": lambda key: key[0].upper() + key[1:],
    "upper": str.upper,
    "lower": str.lower,
    "swapped": str.swapcase,
}


def spelled(value: Any, spelling: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {spelling(key): spelled(one, spelling) for key, one in value.items()}
    return [spelled(one, spelling) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    with node_with(*PLUGINS) as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[tuple[Side, ...]]:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), PLUGINS)) as made:
        for side in made:
            prepare(side)
        yield made


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_asked_for_in_any_case_comes_to_the_same(sides: tuple[Side, ...], spelling: str) -> None:
    keys = {"bridge": {"bridge": "br0", "isGateway": True, "ipam": {"type": "host-local"}}}
    plugins = [
        {"type": kind, **keys.get(kind, {}), SPELLINGS[spelling]("runtimeConfig"): spelled(asked, SPELLINGS[spelling])}
        for kind, asked in ASKED.items()
    ]
    found = []
    for side in sides:
        runtime = side.runtime({"cniVersion": "1.0.0", "name": "asked", "plugins": plugins})
        result = side.add(runtime)
        world = side.world()
        rules = side.run(side.host, "nft", "list", "ruleset")
        seen = {
            "result": result,
            "links": world["pod links"],
            "shaping": world["host qdiscs"],
            "files": world["files"],
            "mac": side.run(side.pod, "ip", "-br", "link", "show", "eth0").split()[2],
            "ports": ["18080" in rules, "18081" in rules],
        }
        side.check(runtime)
        side.delete(runtime)
        found.append(seen)
    assert unmeant(*found) == []
    assert found[1]["mac"] == "02:00:00:00:00:08"
    assert found[1]["ports"] == [True, True]
    assert "10.78.0.9" in str(found[1]["result"])
