"""host-local of the reference and ours on folders of the same contents: the same answers and the same files.

Every call has CNI_NETNS=/dev/null, as those have who test allocation alone. What is meant to differ has its reason.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import ScratchNode, folders

PREVIOUS = {"cniVersion": "1.0.0"}


@dataclass(frozen=True)
class Call:
    """One call: the verb, the container, and what differs from the usual."""

    verb: str
    container: str
    ifname: str = "eth0"
    args: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Course:
    """Calls of one network, one after the other.

    Attributes:
        ipam: keys.
        calls: in order.
        files: what is in the folder before.
        version: of the configuration.
        keys: further ones of the network.
        differs: by place of a call, why its answer is another than the reference's.
    """

    ipam: Mapping[str, Any]
    calls: tuple[Call, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = "1.0.0"
    keys: Mapping[str, Any] = field(default_factory=dict)
    differs: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Twin:
    """One of the two programs, and its folder."""

    program: Path
    folder: Path

    def answer(self, course: Course, call: Call) -> Any:
        """Return what a call comes to: its status, and the result or the sentence."""
        config = {
            "cniVersion": course.version,
            "name": "net",
            "type": "any",
            **course.keys,
            **call.keys,
            "ipam": {"type": "host-local", "dataDir": str(self.folder), **course.ipam},
        }
        if call.verb == "CHECK":
            config["prevResult"] = PREVIOUS
        env = {
            "CNI_COMMAND": call.verb,
            "CNI_CONTAINERID": call.container,
            "CNI_NETNS": "/dev/null",
            "CNI_IFNAME": call.ifname,
            "CNI_ARGS": call.args,
            "CNI_PATH": "/nowhere",
        }
        stdin = json.dumps(config).replace("FOLDER", str(self.folder)).encode()
        done = subprocess.run([self.program], env=env, input=stdin, capture_output=True, check=False)
        document = json.loads(done.stdout or "{}")
        if done.returncode:
            return done.returncode, document["msg"]
        if not document.get("dns"):  # by version an empty object or nothing; both mean nothing
            document.pop("dns", None)
        return done.returncode, document

    def files(self) -> dict[str, str]:
        """Return the network's files but the lock, which says something with ours alone."""
        found = {path.name: path.read_text() for path in (self.folder / "net").iterdir()}
        return {name: text for name, text in found.items() if name != "lock"}

    def prepare(self, files: Mapping[str, str]) -> None:
        (self.folder / "net").mkdir()
        for name, text in files.items():
            path = self.folder / "net" / name if name != "resolv.conf" else self.folder / name
            path.write_text(text)


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[Mapping[str, Path]]:
    reference = consumer("cni") / "host-local"
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(root, "[plugins.host-local]\n") as node:
            assert node.run("install").returncode == 0
            yield {"reference": reference, "ours": node.paths.cni_bin / "nodeplug-host-local"}
    finally:
        folders.remove(root)


@pytest.fixture
def twins(programs: Mapping[str, Path], tmp_path: Path) -> list[Twin]:
    made = []
    for whose, program in programs.items():
        folder = tmp_path / whose
        folder.mkdir()
        made.append(Twin(program, folder))
    return made


def adds(*containers: str, **more: Any) -> tuple[Call, ...]:
    return tuple(Call("ADD", one, **more) for one in containers)


def dels(*containers: str, **more: Any) -> tuple[Call, ...]:
    return tuple(Call("DEL", one, **more) for one in containers)


def only(first: str, last: str, subnet: str = "10.1.2.0/24", **more: str) -> dict[str, str]:
    return {"subnet": subnet, "rangeStart": first, "rangeEnd": last, **more}


SMALL = {"subnet": "10.1.2.0/29"}
V4, V6 = {"subnet": "10.1.2.0/24"}, {"subnet": "fd00:1::/64"}
TWO = [[V4], [{"subnet": "10.2.2.0/24"}]]
COURSES = {
    "begins-at-the-start": Course(V4, adds("a")),
    "begins-behind-the-last": Course(V4, adds("a"), {"last_reserved_ip.0": "10.1.2.77"}),
    "begins-behind-the-end": Course(SMALL, adds("a"), {"last_reserved_ip.0": "10.1.2.6"}),
    "last-of-another-range": Course(V4, adds("a"), {"last_reserved_ip.0": "10.9.9.9"}),
    "last-that-is-junk": Course(V4, adds("a"), {"last_reserved_ip.0": "junk"}),
    "round-robin": Course(
        only("10.1.2.3", "10.1.2.5"), (*adds("a", "b"), *dels("a"), *adds("c"), *dels("c"), *adds("d", "e"))
    ),
    "no-broadcast-and-full": Course(SMALL, adds(*"abcdef")),
    "gateway-in-the-middle": Course({**SMALL, "gateway": "10.1.2.4"}, adds(*"abcdef")),
    "gateway-outside": Course({**SMALL, "gateway": "10.1.9.1"}, adds("a")),
    "v6": Course(V6, adds("a", "b")),
    "v6-full": Course({"subnet": "fd00:1::/126"}, adds("a", "b", "c", "d")),
    "one-address": Course(only("10.1.2.9", "10.1.2.9"), adds("a", "b")),
    "ranges-of-a-set": Course(
        {"ranges": [[only("10.1.2.3", "10.1.2.4"), only("10.1.3.3", "10.1.3.3", "10.1.3.0/24")]]},
        (*adds("a", "b", "c", "d"), *dels("b", "c"), *adds("e", "f")),
    ),
    "dual": Course({"ranges": [[V4], [V6]]}, (*adds("a"), *adds("a", ifname="eth1"), *dels("a"), *adds("b"))),
    "two-sets": Course({"ranges": TWO}, adds("a", "b")),
    "second-set-full": Course(
        {"ranges": [[V4], [only("10.2.2.2", "10.2.2.2", "10.2.2.0/24")]]}, (*adds("a"), *adds("b"), *dels("a", "b"))
    ),
    "old-style-before-new": Course({**V4, "ranges": [[{"subnet": "10.2.2.0/24"}]]}, adds("a")),
    "runtime-ranges-first": Course(
        V4, adds("a"), keys={"runtimeConfig": {"ipRanges": [[{"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.7"}]]}}
    ),
    "runtime-ranges-alone": Course({}, adds("a"), keys={"runtimeConfig": {"ipRanges": [[V4], [V6]]}}),
    "other-interface": Course(V4, (*adds("a"), *adds("a", ifname="eth1"), *dels("a", ifname="eth1"))),
    "taken-by-others": Course(V4, adds("a", "b"), {"10.1.2.2": "x\r\neth0", "10.1.2.4": "y"}),
    "old-file-is-released": Course(V4, dels("x"), {"10.1.2.2": "x", "10.1.2.3": "x\r\neth1"}),
    "own-file-before-old-file": Course(V4, dels("x"), {"10.1.2.2": "x", "10.1.2.3": "x\r\neth0"}),
    "white-space-in-files": Course(V4, dels("x", "y"), {"10.1.2.2": "  x\r\neth0\n\n", "10.1.2.3": "\ty \n"}),
    "del-of-a-stranger": Course(V4, (*dels("a"), *adds("b"), *dels("a", "b", "b"))),
    "check": Course(V4, (*adds("a"), Call("CHECK", "a"), Call("CHECK", "b"), *dels("a"), Call("CHECK", "a"))),
    "check-an-old-file": Course(V4, (Call("CHECK", "x"),), {"10.1.2.2": "x"}),
    "requested-by-args": Course(V4, (*adds("a", args="IP=10.1.2.88"), *adds("b"))),
    "requested-with-prefix": Course(V4, adds("a", args="IP=10.1.2.88/24")),
    "requested-and-others": Course(V4, adds("a", args="IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.1.2.88")),
    "requested-empty": Course(V4, adds("a", args="IP=")),
    "requested-by-args-of-cni": Course(V4, adds("a", keys={"args": {"cni": {"ips": ["10.1.2.88"]}}})),
    "requested-of-each-family": Course(
        {"ranges": [[V4], [V6]]}, adds("a", keys={"runtimeConfig": {"ips": ["10.1.2.88/24", "fd00:1::88"]}})
    ),
    "requested-of-one-family": Course(
        {"ranges": [[V4], [V6]]}, (*adds("a", keys={"runtimeConfig": {"ips": ["fd00:1::88"]}}), *adds("b"))
    ),
    "requested-of-two-sets": Course(
        {"ranges": TWO}, adds("a", keys={"args": {"cni": {"ips": ["10.2.2.9", "10.1.2.9"]}}})
    ),
    "requested-and-taken": Course(V4, (*adds("a", args="IP=10.1.2.9"), *adds("b", args="IP=10.1.2.9"))),
    "requested-outside-releases": Course(V4, (*adds("a", args="IP=10.9.9.9"), *adds("b"))),
    "requested-gateway": Course(V4, adds("a", args="IP=10.1.2.1")),
    "routes": Course({**V4, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.1.2.9"}]}, adds("a")),
    "routes-1.1": Course(
        {**V4, "routes": [{"dst": "::/0", "mtu": 1400, "advmss": 1300, "priority": 9, "table": 5, "scope": 253}]},
        adds("a"),
        version="1.1.0",
    ),
    "routes-0.2": Course({**V4, "routes": [{"dst": "0.0.0.0/0", "advmss": 1300}]}, adds("a"), version="0.2.0"),
    "each-family-0.2": Course({"ranges": [[V4], [V6]]}, adds("a"), version="0.2.0"),
    "resolv-conf": Course(
        {**V4, "resolvConf": "FOLDER/resolv.conf"},
        adds("a"),
        {
            "resolv.conf": "# a\n; b\nnameserver 192.0.2.1\nnameserver 192.0.2.2 x\n domain example.com\nsearch a b\n"
            "search c\noptions ndots:5 rotate\nsortlist 10.0.0.0\nnameserver\n"
        },
    ),
    "repeated": Course(
        V4, adds("a", "a"), differs={1: "a runtime that lost the first answer asks again, and gets the same"}
    ),
    "network-address": Course(
        only("10.1.2.0", "10.1.2.2"), adds("a"), differs={0: "no host can use the address of a network"}
    ),
    "broadcast": Course(
        only("10.1.2.255", "10.1.2.255"), adds("a"), differs={0: "no host can use a broadcast address"}
    ),
    "gateway-of-the-other-family": Course(
        {**V4, "gateway": "fd00::1"}, adds("a"), differs={0: "no route leads to a gateway of the other family"}
    ),
}


@pytest.mark.parametrize("course", [pytest.param(course, id=name) for name, course in COURSES.items()])
def test_both_answer_alike_and_leave_the_same_files(twins: list[Twin], course: Course) -> None:
    for twin in twins:
        twin.prepare(course.files)
    theirs, ours = ([twin.answer(course, call) for call in course.calls] for twin in twins)
    assert {place for place, pair in enumerate(zip(theirs, ours, strict=True)) if pair[0] != pair[1]} == set(
        course.differs
    ), list(zip(theirs, ours, strict=True))
    if not course.differs:
        assert twins[1].files() == twins[0].files()
