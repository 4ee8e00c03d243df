"""loopback of the reference and ours, side by side."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import Side, node_with, twins

from nodeplug.testing import CniError, CniRuntime, ScratchNode


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    with node_with("loopback") as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[tuple[Side, ...]]:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), ("loopback",))) as made:
        yield made


def network(side: Side, version: str, **keys: Any) -> CniRuntime:
    return side.runtime({"cniVersion": version, "name": "loop", "plugins": [{"type": "loopback", **keys}]})


def interface(side: Side) -> Any:
    (link,) = json.loads(side.run(side.pod, "ip", "-j", "addr", "show", "lo"))
    return link["flags"], link["operstate"], [(one["local"], one["prefixlen"]) for one in link["addr_info"]]


def call(side: Side, verb: str, runtime: CniRuntime) -> Any:
    with side.host.netns.entered():
        if verb == "ADD":
            found = side.plain(runtime.add("c0", side.pod.path, "lo"))
            return {key: value for key, value in found.items() if value}
        return runtime.check("c0", "lo") if verb == "CHECK" else runtime.delete("c0", side.pod.path, "lo")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_the_interface_and_the_result_are_alike_in_every_version(sides: tuple[Side, ...], version: str) -> None:
    """Before 1.0.0 the reference prints what 1.0.0 has, under the older version's name."""
    runtimes = [network(side, version) for side in sides]
    for verb in ("ADD", "ADD", *(["CHECK"] if version >= "0.4.0" else []), "DEL", "DEL"):
        theirs, ours = (call(side, verb, runtime) for side, runtime in zip(sides, runtimes, strict=True))
        if verb == "ADD" and version < "1.0.0":
            assert theirs["ips"][0] == {"address": "127.0.0.1/8", "interface": 0}
            addresses = {"ip4": {"ip": "127.0.0.1/8"}, "ip6": {"ip": "::1/128"}}
            assert (
                ours == {"cniVersion": version, **addresses} if version < "0.3.0" else ours["ips"][0]["version"] == "4"
            )
        else:
            assert ours == theirs
        assert interface(sides[1]) == interface(sides[0])


def test_check_finds_an_interface_that_is_down(sides: tuple[Side, ...]) -> None:
    refused = []
    for side in sides:
        runtime = network(side, "1.1.0")
        call(side, "ADD", runtime)
        side.run(side.pod, "ip", "link", "set", "lo", "down")
        with pytest.raises(CniError) as refusal:
            call(side, "CHECK", runtime)
        refused.append(refusal.value.code)
    assert refused == [999, 999]


def test_what_came_before_in_the_list_is_handed_on(sides: tuple[Side, ...]) -> None:
    before = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": "10.9.0.2/24"}],
    }
    theirs, ours = (call(side, "ADD", network(side, "1.0.0", prevResult=before)) for side in sides)
    assert ours == theirs
