"""Kinds of links that a kernel may lack: what the reference asks of it, and what ours does.

Nobody can see here what comes of a message where the kernel has no such links. So the messages are compared, as
strace(1) shows them, up to the refusal, and the sentences about it.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.link_kinds import has_kind
from tests.programs import need

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode, folders
from nodeplug.testing.waiting import until

IPAM = {"type": "static", "addresses": [{"address": "192.0.2.5/24"}]}
BEFORE = {"cniVersion": "1.1.0", "interfaces": [{"name": "own0", "sandbox": "/x"}]}
WORDS = {"vrf": "could not add VRF blue"}
CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "dummy": ("dummy", {}),
    "ipvlan": ("ipvlan", {"master": "up0"}),
    "ipvlan-l3": ("ipvlan", {"master": "up0", "mode": "l3", "mtu": 1400}),
    "ipvlan-l3s": ("ipvlan", {"master": "up0", "mode": "l3s"}),
    "vrf": ("vrf", {"vrfname": "blue", "prevResult": BEFORE}),
    "vrf-table": ("vrf", {"vrfname": "blue", "table": 300, "prevResult": BEFORE}),
    "vlan": ("vlan", {"master": "up0", "vlanId": 5}),
    "vlan-mtu": ("vlan", {"master": "up0", "vlanId": 4094, "mtu": 1400}),
    "vlan-inside": ("vlan", {"master": "own0", "vlanId": 5, "linkInContainer": True}),
}
NEWLINK = 16
IFNAME, NETNS, TXQLEN, LINKINFO = 3, 28, 13, 18


@dataclass(frozen=True)
class World:
    """A host with the interface up0, and a container with own0."""

    folder: Path
    bins: Mapping[str, Path]
    daemon: ScratchNode
    host: Sandbox
    pod: Sandbox

    def add(self, kind: str, keys: Mapping[str, Any], *bins: Path) -> str:
        """Call ADD, which is refused; return the sentence."""
        conflist = {"cniVersion": "1.1.0", "name": "asked", "plugins": [{"type": kind, "ipam": IPAM, **keys}]}
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        runtime = CniRuntime(conflist, list(bins), cache_dir=self.folder / "cache", env=env)
        with self.host.netns.entered(), pytest.raises(CniError) as refusal:
            runtime.add("c0", self.pod.path)
        return str(refusal.value)

    def theirs(self, plugin: str, keys: Mapping[str, Any]) -> tuple[str, list[bytes]]:
        output, wrapped = self.folder / "theirs", self.folder / "bin"
        wrapped.mkdir()
        script = wrapped / plugin
        words = " ".join(traced(output))
        script.write_text(f'#!/bin/sh\nexec {words} {self.bins["reference"] / plugin} "$@"\n')
        script.chmod(0o755)
        return self.add(plugin, keys, wrapped, self.bins["reference"]), creations(output)

    def ours(self, plugin: str, keys: Mapping[str, Any]) -> tuple[str, list[bytes]]:
        output = self.folder / "ours"
        with subprocess.Popen([*traced(output), "-p", str(self.daemon.pid)]) as tracer:
            until(lambda: "TracerPid:\t0\n" not in Path(f"/proc/{self.daemon.pid}/status").read_text())
            said = self.add(f"nodeplug-{plugin}", keys, self.bins["ours"])
            tracer.terminate()
        return said, creations(output)


def traced(output: Path) -> list[str]:
    return ["strace", "-f", "-qq", "-o", str(output), "-e", "trace=sendto,sendmsg", "-e", "write=all"]


def creations(output: Path) -> list[bytes]:
    """The messages in hexadecimal dumps of strace(1) that make a link: NLM_F_CREATE."""
    found: list[bytes] = []
    data = b""
    for line in [*output.read_text().splitlines(), ""]:
        match = re.match(r" \| ([0-9a-f]{5})  ((?:[0-9a-f]{2} +){1,16})", line)
        if match:
            data += bytes.fromhex(match[2])
        else:
            found += [data] if len(data) > 32 else []
            data = b""
    return [one for one in found if one[4:6] == bytes([NEWLINK, 0]) and one[7] & 0x4]


def attributes(message: bytes) -> dict[int, bytes]:
    found, start = {}, 32
    while start + 4 <= len(message):
        length, kind = (int.from_bytes(message[at : at + 2], "little") for at in (start, start + 2))
        found[kind & 0x3FFF] = message[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def asked(message: bytes) -> dict[int, bytes]:
    """What a message asks, but for its name and the descriptor of a namespace, which differ by chance.

    The reference names the namespace in every message; ours does not if it is the sender's own.
    """
    found = attributes(message)
    info = found[LINKINFO].replace(b"\x0a\x00\x01\x00dummy\x00\x00\x00", b"\x09\x00\x01\x00dummy\x00\x00\x00")
    return {**{kind: data for kind, data in found.items() if kind not in {IFNAME, NETNS, TXQLEN}}, LINKINFO: info}


@pytest.fixture(scope="module")
def daemon() -> Iterator[ScratchNode]:
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        plugins = ("dummy", "ipvlan", "vlan", "vrf")
        with ScratchNode(root, "".join(f"[plugins.{plugin}]\n" for plugin in plugins)) as node:
            assert node.run("install").returncode == 0
            yield node
    finally:
        folders.remove(root)


@pytest.fixture
def world(short_path: Path, daemon: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[World]:
    need("ip", "strace")
    bins = {"reference": consumer("cni"), "ours": daemon.paths.cni_bin}
    with ExitStack() as stack:
        host, pod = (stack.enter_context(Sandbox(short_path / name)) for name in ("host", "pod"))
        for where, name in ((host, "up"), (pod, "own")):
            words = ["ip", "link", "add", f"{name}0", "type", "veth", "peer", "name", f"{name}1"]
            subprocess.run(["nsenter", f"--net={where.path}", *words], check=True)
        yield World(short_path, bins, daemon, host, pod)


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_without_such_links_is_asked_the_same_and_refuses_in_the_same_words(world: World, case: str) -> None:
    plugin, keys = CASES[case]
    if has_kind(plugin):
        pytest.skip(f"needs a kernel without links of kind {plugin}")
    (said, sent), (said_by_us, sent_by_us) = world.theirs(plugin, keys), world.ours(plugin, keys)
    words = f"{WORDS.get(plugin, f'failed to create {plugin}')}: operation not supported"
    assert (words in said, words in said_by_us) == (True, True)
    assert [asked(one) for one in sent_by_us] == [asked(one) for one in sent]
    assert len(sent) == 1
    assert [name for name in world.pod.links() if not name.startswith("own")] == ["lo"]
