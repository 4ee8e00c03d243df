"""Two hosts with a container each, one for the reference's current plugins and one for ours, and what differs there.

Owns: the namespaces and folders of both, what is looked at (the result, every link with its addresses, routes, sysctls
and qdiscs, the tables of iptables, and the files), and `MEANT`, which says what differs on purpose.
Refuses: networks. A test brings them, with the reference's names of plugins.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.programs import need

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode, folders
from nodeplug.testing.waiting import until

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ASKED = {
    "portMappings": [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}],
    "bandwidth": {"ingressRate": 10**9, "ingressBurst": 10**6},
}
"""What the runtime asks for, of plugins that declare the capability."""
MEANT: Mapping[str, str] = {
    r"(host |pod )?links: \d+: num_[rt]x_queues": "one queue is in use; ours have no room for more",
    "result: interfaces: .*: mtu": "the specification has the key from 1.1.0 on; the reference's bridge leaves it out",
    ".*: ifalias": "`ip link` shows whose an interface is",
    ".* links: .*: txqlen": "the kernel's own; the reference's library asks for 0",
    ".*: addresses: .*: (nodad|tentative)": "nobody else has an address that IPAM has just given, or of a new bridge",
    "host sysctls: .*/accept_dad": "as above: the first IPv6 packets over a new bridge need not wait for 2 s",
    "host sysctls: .*/br0/accept_ra": "a bridge that is there is somebody's, who may have its addresses from a router",
}
"""What differs, as `differences` names it, with the reason."""
BY_CHANCE = {"ifindex", "link_index", "link_netnsid", "link", "bridge_id", "root_id", "port_id", "port_no", "id"}
BY_CHANCE |= {"designated_port", "designated_bridge", "nf_conntrack_count", "operstate"}
CARRIER = {"NO-CARRIER", "LOWER_UP"}


@dataclass(frozen=True)
class Side:
    """One implementation, or a mixture of both, on a host of its own.

    Attributes:
        ours: the plugins, by the reference's names, that are ours; the others are the reference's.
        bins: where both are.
    """

    ours: Collection[str]
    folder: Path
    bins: tuple[Path, ...]
    host: Sandbox
    pod: Sandbox

    def runtime(self, conflist: Mapping[str, Any]) -> CniRuntime:
        """Take a list over: `type` is changed, and the folders are the test's."""
        plugins = []
        for plugin in conflist["plugins"]:
            kind = plugin["type"].removeprefix("cnv-")
            made = {**plugin, "type": f"nodeplug-{kind}" if kind in self.ours else kind}
            if "ipam" in plugin:
                made["ipam"] = {**plugin["ipam"], "dataDir": str(self.folder / "addresses")}
            if kind == "tuning":
                made["dataDir"] = str(self.folder / "tuning")
            plugins.append(made)
        document = {**conflist, "plugins": plugins}
        return CniRuntime(document, list(self.bins), env={"PATH": PATH}, cache_dir=self.folder / "cache")

    def add(self, runtime: CniRuntime, asked: Mapping[str, Any] = ASKED) -> Any:
        with self.host.netns.entered():
            return self.plain(runtime.add("c0", self.pod.path, capability_args=asked))

    def check(self, runtime: CniRuntime) -> None:
        with self.host.netns.entered():
            runtime.check("c0")

    def delete(self, runtime: CniRuntime) -> None:
        """End the attachment; what was asked for is in the runtime's cache."""
        with self.host.netns.entered():
            runtime.delete("c0", self.pod.path)

    def run(self, where: Sandbox, *words: str) -> str:
        command = ["nsenter", f"--net={where.path}", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def plain(self, found: Any) -> Any:
        """Replace what differs by chance: paths, names of veths, MACs."""
        text = json.dumps(found).replace(str(self.pod.path), "SANDBOX").replace(str(self.folder), "FOLDER")
        text = re.sub(r"veth[0-9a-f]{8}", "VETH", text)
        text = re.sub(r"\b(?!00:00:00:00:00:00|ff:ff:ff:ff:ff:ff)([0-9a-f]{2}:){5}[0-9a-f]{2}\b", "MAC", text)
        return json.loads(text)

    def world(self) -> dict[str, Any]:
        found = {f"{end} {what}": value for end in ("host", "pod") for what, value in self._end(end).items()}
        addresses = self.folder / "addresses"
        found["files"] = {str(path.relative_to(addresses)): _content(path) for path in addresses.rglob("*")}
        found["backups"] = [path.name for path in (self.folder / "tuning").glob("*")]
        for program in ("iptables", "ip6tables"):
            lines = self.run(self.host, program, "-S").splitlines()
            found[program] = [re.sub(r' -m comment --comment "nodeplug [^"]*"', "", line) for line in lines]
        return dict(self.plain(found))

    def _end(self, end: str) -> dict[str, Any]:
        where = self.host if end == "host" else self.pod
        links = json.loads(self.run(where, "ip", "-j", "-d", "addr", "show"))
        routes = [
            {key: value for key, value in one.items() if key != "flags"}
            for family in ("-4", "-6")
            for one in json.loads(self.run(where, "ip", "-j", family, "route", "show", "table", "all") or "[]")
            if one.get("table") != "local" and not str(one["dst"]).startswith(("fe80", "ff00"))  # the kernel's own
        ]
        rules = [self.run(where, "ip", family, "rule", "show") for family in ("-4", "-6")]
        with where.netns.entered():
            files = (path for path in Path("/proc/sys/net").rglob("*") if path.is_file() and path.name not in BY_CHANCE)
            sysctls = {str(path): _content(path) for path in files}
        qdiscs = [
            {key: value for key, value in one.items() if key not in {"handle", "refcnt"}}
            for one in json.loads(self.run(where, "tc", "-j", "qdisc", "show"))
            if one["kind"] != "bfifo"  # ours alone, before a token bucket: see docs/plugins/bandwidth.md
        ]
        return {
            "qdiscs": sorted(qdiscs, key=str),
            "links": sorted((_link(link) for link in links), key=str),
            "routes": sorted(routes, key=str),
            "rules": rules,
            "sysctls": sysctls,
        }


def _link(link: Any) -> Any:
    """A link without numbers and clocks, and without the addresses that the kernel gives it."""
    data = link.get("linkinfo", {})
    told = {key: _lasting(data.get(key, {})) for key in ("info_data", "info_slave_data")}
    own = [_lasting(one) for one in link.get("addr_info", []) if one.get("scope") != "link"]
    return {
        **{key: value for key, value in _lasting(link).items() if key not in {"linkinfo", "addr_info"}},
        **told,
        "flags": sorted({*link["flags"]} - CARRIER),
        "kind": data.get("info_kind"),
        "addresses": sorted(own, key=str),
    }


def _lasting(found: Mapping[str, Any]) -> dict[str, Any]:
    clocks = ("_timer", "life_time")
    return {key: value for key, value in found.items() if key not in BY_CHANCE and not key.endswith(clocks)}


def _content(path: Path) -> str:
    with suppress(OSError):  # some sysctls cannot be read
        return path.read_text().strip() if path.is_file() and path.name != "lock" else ""
    return ""


@contextmanager
def node_with(*plugins: str, sections: str = "") -> Iterator[ScratchNode]:
    """Run a daemon of ours with these plugins, and further sections of its file, for all twins of a file."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(folder, "".join(f"[plugins.{name}]\n" for name in plugins) + sections) as node:
            assert node.run("install").returncode == 0
            yield node
    finally:
        folders.remove(folder)


@contextmanager
def twins(folder: Path, *bins: Path, kinds: tuple[Collection[str], ...]) -> Iterator[tuple[Side, ...]]:
    """Make a side for each of `kinds`, which are the plugins that are ours there."""
    need("iptables", "tc")
    with ExitStack() as stack:

        def side(ours: Collection[str]) -> Side:
            root = Path(tempfile.mkdtemp(dir=folder))
            host, pod = (stack.enter_context(Sandbox(root / end)) for end in ("host", "pod"))
            return Side(ours, root, bins, host, pod)

        yield tuple(side(ours) for ours in kinds)


def prepare(side: Side, *links: str) -> None:
    """Make the interfaces that a network takes for granted: bridges are named so."""
    side.run(side.host, "ip", "link", "set", "lo", "up")
    for name in links:
        kind = ("bridge",) if name.startswith("br") else ("veth", "peer", "name", "beyond0")
        side.run(side.host, "ip", "link", "add", name, "type", *kind)
        side.run(side.host, "ip", "link", "set", name, "up")
        if kind[0] == "veth":
            side.run(side.host, "ip", "link", "set", "beyond0", "up")


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Name what differs, each with the path to it."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            line
            for key in {**theirs, **ours}
            for line in differences(theirs.get(key, "nothing"), ours.get(key, "nothing"), f"{path}{key}: ")
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [line for number, (one, other) in pairs for line in differences(one, other, f"{path}{number}: ")]
    return [] if theirs == ours else [f"{path}{theirs} is with ours {ours}"]


def unmeant(theirs: Any, ours: Any) -> list[str]:
    """Name what differs without a reason."""
    return [line for line in differences(theirs, ours) if not any(re.match(f"{one}: ", line) for one in MEANT)]


def worlds_differ(sides: tuple[Side, ...]) -> list[str]:
    """Look until both have settled: what a link is when another came or went follows a little later."""
    with suppress(AssertionError):
        until(lambda: not unmeant(*(side.world() for side in sides)))
    return unmeant(*(side.world() for side in sides))


def come_to_the_same(sides: tuple[Side, ...], conflist: Mapping[str, Any]) -> None:
    """Attach, check where the version has CHECK, and end a container on both sides, and look after each step."""
    runtimes = [side.runtime(conflist) for side in sides]
    results = [{"result": side.add(runtime)} for side, runtime in zip(sides, runtimes, strict=True)]
    _none("after ADD", unmeant(*results) + worlds_differ(sides))
    if conflist["cniVersion"] not in {"0.1.0", "0.2.0", "0.3.0", "0.3.1"}:
        for side, runtime in zip(sides, runtimes, strict=True):
            side.check(runtime)
    for side, runtime in zip(sides, runtimes, strict=True):
        side.delete(runtime)
    _none("after DEL", worlds_differ(sides))


def _none(when: str, found: Collection[str]) -> None:
    if found:
        raise AssertionError("\n".join([f"{when}:", *found]))
