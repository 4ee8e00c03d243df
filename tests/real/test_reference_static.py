"""static of the reference and ours: the same answers, for every verb and every version."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import ScratchNode, folders

VERSIONS = ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
V4 = {"address": "10.77.0.5/24", "gateway": "10.77.0.1"}
V6 = {"address": "fd77::5/64"}
MORE = {
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}, {"dst": "::/0", "gw": "fd77::1"}],
    "dns": {"nameservers": ["192.0.2.1"], "domain": "example", "search": ["a", "b"], "options": ["ndots:2"]},
}
CALLS: Mapping[str, tuple[dict[str, Any], str]] = {
    "addresses": ({"ipam": {"addresses": [V4]}}, ""),
    "each-family": ({"ipam": {"addresses": [V4, V6], **MORE}}, ""),
    "several": ({"ipam": {"addresses": [V4, V6, {"address": "10.78.0.5/16"}]}}, ""),
    "none": ({"ipam": {}}, ""),
    "of-the-gateway-itself": ({"ipam": {"addresses": [{"address": "10.77.0.1/24", "gateway": "10.77.0.1"}]}}, ""),
    "host-prefix": ({"ipam": {"addresses": [{"address": "10.77.0.5/32", "gateway": "10.9.9.9"}]}}, ""),
    "key-case": ({"IPAM": {"ADDRESSES": [{"ADDRESS": "10.77.0.5/24", "Gateway": "10.77.0.1"}]}}, ""),
    "routes-1.1": (
        {"ipam": {"addresses": [V4], "routes": [{"dst": "10.9.0.0/16", "mtu": 1400, "priority": 9, "table": 5}]}},
        "",
    ),
    "args": ({"ipam": {}}, "IP=10.77.0.6/24;GATEWAY=10.77.0.1"),
    "args-lists": ({"ipam": {}}, "IP=10.77.0.6/24, fd77::6/64;GATEWAY= 10.77.0.1,fd77::1,192.0.2.1"),
    "args-gateway-first": ({"ipam": {}}, "GATEWAY=10.77.0.1;IP=10.77.0.6/24"),
    "args-gateway-is-not-of-the-configuration": ({"ipam": {"addresses": [V6]}}, "GATEWAY=fd77::1"),
    "args-beside-the-configuration": ({"ipam": {"addresses": [V6]}}, "IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.77.0.6/24"),
    "args-empty": ({"ipam": {"addresses": [V4]}}, "IP=;GATEWAY="),
    "args-of-cni": ({"ipam": {"addresses": [V4]}, "args": {"cni": {"ips": ["10.77.0.7/24"]}}}, "IP=10.77.0.6/24"),
    "runtime": (
        {
            "ipam": {"addresses": [V4]},
            "args": {"cni": {"ips": ["10.77.0.7/24"]}},
            "runtimeConfig": {"ips": ["10.77.0.8/24", "fd77::8/64"]},
        },
        "",
    ),
    "runtime-empty": ({"ipam": {"addresses": [V4]}, "runtimeConfig": {"ips": []}}, ""),
    "bad-address-that-is-not-used": (
        {"ipam": {"addresses": [{"address": "x"}]}, "runtimeConfig": {"ips": ["10.77.0.8/24"]}},
        "",
    ),
}
RESULTS: Mapping[str, list[dict[str, str]]] = {
    "the-same": [V4],
    "another-gateway": [{**V4, "gateway": "10.77.0.2"}],
    "another-address": [{"address": "10.77.0.99/24"}],
    "no-gateway": [{"address": "10.77.0.5/24"}],
    "nothing": [],
}


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[tuple[Path, Path]]:
    reference = consumer("cni") / "static"
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(root, "[plugins.static]\n") as node:
            assert node.run("install").returncode == 0
            yield reference, node.paths.cni_bin / "nodeplug-static"
    finally:
        folders.remove(root)


def answer(program: Path, verb: str, config: Mapping[str, Any], args: str = "") -> Any:
    """Return the exit status, and the result or the sentence."""
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/dev/null",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": args,
        "CNI_PATH": "/nowhere",
    }
    stdin = json.dumps({"name": "net", "type": "static", **config}).encode()
    done = subprocess.run([program], env=env, input=stdin, capture_output=True, check=False)
    document = json.loads(done.stdout or "{}")
    if done.returncode:
        return done.returncode, document["msg"]
    if not document.get("dns"):  # an empty object or nothing; both mean nothing
        document.pop("dns", None)
    return done.returncode, document


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CALLS)
def test_an_add_comes_to_the_same(programs: tuple[Path, Path], name: str, version: str) -> None:
    config, args = CALLS[name]
    theirs, ours = (answer(one, "ADD", {"cniVersion": version, **config}, args) for one in programs)
    assert ours == theirs


@pytest.mark.parametrize("version", ["0.4.0", "1.0.0", "1.1.0"])
@pytest.mark.parametrize("name", RESULTS)
def test_a_check_comes_to_the_same(programs: tuple[Path, Path], name: str, version: str) -> None:
    family = {"version": "4"} if version == "0.4.0" else {}
    result = {"cniVersion": version, "ips": [{**family, **one} for one in RESULTS[name]]}
    config = {"cniVersion": version, "ipam": {"addresses": [V4]}, "prevResult": result}
    theirs, ours = (answer(one, "CHECK", config) for one in programs)
    assert ours == theirs


@pytest.mark.parametrize("verb", ["DEL", "GC", "STATUS"])
@pytest.mark.parametrize("ipam", [{"addresses": [V4]}, {"addresses": [{"address": "x"}]}], ids=["good", "bad"])
def test_the_other_verbs_have_nothing_to_do(programs: tuple[Path, Path], verb: str, ipam: dict[str, Any]) -> None:
    config = {"cniVersion": "1.1.0", "ipam": ipam, "cni.dev/valid-attachments": []}
    assert [answer(one, verb, config) for one in programs] == [(0, {}), (0, {})]
