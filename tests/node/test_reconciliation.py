"""Containers that end while nobody sends a DEL, under the real daemon and with the whole chain of plugins.

No runtime calls again: what is left is found by the records below /run, by libcni's cache, and by the namespaces that
exist, when the daemon starts, after a reboot, and now and then.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode, forked
from nodeplug.testing.folders import remove
from nodeplug.testing.waiting import until

NAME = "reconciled"
SUPERVISOR = """
listen = ""
install = true
native_entrypoints = false
cni_reconcile = "200ms"
"""
PLUGINS = """
[plugins.bridge.config]
data_dir = "{root}/addresses"
[plugins.portmap]
[plugins.bandwidth]
[plugins.tuning.config]
data_dir = "{root}/tuning"
[plugins.firewall]
"""
BRIDGE: dict[str, Any] = {
    "type": "nodeplug-bridge",
    "bridge": "reconcile0",
    "isDefaultGateway": True,
    "ipMasq": True,
    "macspoofchk": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.18.92.0/24"}], [{"subnet": "fd00:198:92::/64"}]]},
}
RATES = {f"{way}{what}": 80_000_000 for way in ("ingress", "egress") for what in ("Rate", "Burst")}
CHAIN = [
    BRIDGE,
    {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
    {"type": "nodeplug-bandwidth", **RATES},
    {"type": "nodeplug-tuning", "mtu": 1300, "sysctl": {"net.core.somaxconn": "512"}},
    {"type": "nodeplug-firewall", "ingressPolicy": "same-bridge"},
]
PORTS = {"portMappings": [{"hostPort": 20080, "containerPort": 80, "protocol": "tcp"}]}


@dataclass
class Place:
    """A node, its runtime, and the sandboxes of containers."""

    node: ScratchNode
    runtime: CniRuntime
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.node.root

    def sandbox(self, container: str) -> Sandbox:
        (self.root / "ns").mkdir(exist_ok=True)
        made = self.sandboxes[container] = Sandbox(self.root / "ns" / container)
        return made

    def attach(self, container: str, **asked: Any) -> Sandbox:
        sandbox = self.sandbox(container)
        self.runtime.add(container, sandbox.path, capability_args=asked)
        return sandbox

    def end(self, container: str) -> None:
        """End a sandbox as somebody does who sends no DEL."""
        self.sandboxes.pop(container).close()

    def until_veths_ended(self, container: str) -> None:
        """Wait for the kernel, which removes the links of a closed namespace later, and under load much later."""
        until(lambda: container not in said("ip", "link", "show", "type", "veth"))

    def left(self, container: str) -> list[str]:
        """Name the rules, links and files of a container; libcni's cache is not the daemon's."""
        rules = said("nft", "list", "ruleset")
        links = [f"{one['ifname']} {one.get('ifalias', '')}" for one in json.loads(said("ip", "-json", "link"))]
        folders = [self.node.paths.attachments, self.node.paths.run / "plugins", *map(self.root.joinpath, DATA)]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return [
            *(line.strip() for line in rules.splitlines() if container in line),
            *(one for one in links if container in one),
            *(str(path) for path in files if container in path.name or container.encode() in content(path)),
        ]

    def age(self, container: str) -> None:
        """Let the files of a container be an hour old: no ADD of it may still run."""
        for path in (path for folder in DATA for path in (self.root / folder).rglob("*") if path.is_file()):
            if container in path.name or container.encode() in content(path):
                os.utime(path, (time.time() - 3600, time.time() - 3600))

    def gc(self, *options: str) -> list[dict[str, Any]]:
        """Return the rows of `nodeplug net gc`."""
        return list(json.loads(self.said("--json", *options)))

    def said(self, *options: str) -> str:
        """Run `nodeplug net gc`."""
        folders = {"--data-dir": "addresses", "--tuning-dir": "tuning", "--cache-dir": "var/lib/cni/results"}
        places = [word for option, folder in folders.items() for word in (option, str(self.root / folder))]
        done = self.node.run("net gc", *places, "--run-dir", str(self.node.paths.run), *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def until_ended(self, container: str) -> None:
        until(lambda: not self.left(container), found=lambda: f"{self.left(container)}\n{self.node.log[-3000:]}")


DATA = ("addresses", "tuning", "foreign")


def content(path: Path) -> bytes:
    """What a file has; nothing if it is gone meanwhile."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def said(*command: str) -> str:
    need(command[0])
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="npr-", dir="/tmp"))  # a socket's path must be short
    yield made
    remove(made)


@pytest.fixture(scope="module")
def node(root: Path) -> Iterator[ScratchNode]:
    env = {"PYTHONPATH": os.pathsep.join(forked.search_path())}
    with ScratchNode(root, PLUGINS.replace("{root}", str(root)), supervisor=SUPERVISOR, env=env, fork=True) as made:
        yield made


@pytest.fixture
def place(node: ScratchNode) -> Iterator[Place]:
    if not node.running:
        node.start()
    made = Place(node, runtime(node, *CHAIN))
    made.sandbox("beside")  # where no namespace at all is seen, none counts as gone
    yield made
    for container in list(made.sandboxes):
        made.end(container)


def runtime(node: ScratchNode, *plugins: dict[str, Any]) -> CniRuntime:
    conflist = {"cniVersion": "1.0.0", "name": NAME, "plugins": list(plugins)}
    return CniRuntime(conflist, [node.paths.cni_bin], cache_dir=node.root / "var/lib/cni")


def test_the_whole_chain_of_a_container_ends_with_its_namespace_although_the_daemon_was_killed(place: Place) -> None:
    lives, _ = place.attach("cLives"), place.attach("cEnds", **PORTS)
    assert len(place.left("cEnds")) > 10
    place.node.kill()
    place.end("cEnds")
    place.node.start()
    place.until_ended("cEnds")
    assert lives.links() == ("eth0", "lo")
    assert place.left("cLives") != []
    place.runtime.delete("cLives", lives.path)


def test_libcnis_cache_tells_what_the_records_have_lost(place: Place) -> None:
    lives, ends = place.attach("cLives"), place.attach("cEnds", **PORTS)
    place.node.kill()
    shutil.rmtree(place.node.paths.attachments)
    place.end("cEnds")
    place.node.start()
    place.until_ended("cEnds")
    told = f"ended attachment {NAME}/cEnds/eth0: network namespace {ends.path} is gone"
    until(lambda: told in place.node.log)
    assert place.runtime.cache.get("cEnds", "eth0") is not None
    assert lives.links() == ("eth0", "lo")
    assert place.left("cLives") != []
    place.runtime.delete("cLives", lives.path)


def test_a_daemon_that_runs_finds_it_too(place: Place) -> None:
    place.attach("cEnds", **PORTS)
    shutil.rmtree(place.node.paths.attachments)
    place.end("cEnds")
    place.until_ended("cEnds")


def test_after_a_reboot_nothing_is_left(place: Place) -> None:
    """The folders in memory are empty then, and rules and links are gone; libcni's cache and the addresses are not."""
    sandbox = place.attach("cEnds", **PORTS)
    place.node.kill()
    place.end("cEnds")
    place.end("beside")
    shutil.rmtree(place.node.paths.run)
    shutil.rmtree(sandbox.path.parent)
    cached = place.runtime.cache.path("cEnds", "eth0")
    os.utime(cached, (1.0, 1.0))
    said("nft", "flush", "ruleset")
    said("ip", "link", "delete", "reconcile0")
    place.node.start()
    place.until_ended("cEnds")
    until(lambda: f"network namespace {sandbox.path} is of an earlier boot" in place.node.log)


def test_what_some_namespace_still_has_is_held(place: Place) -> None:
    sandbox = place.attach("cMoved")
    need("nsenter")
    process = subprocess.Popen(["nsenter", f"--net={sandbox.path}", "sleep", "600"])
    until(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino == sandbox.path.stat().st_ino)
    try:
        place.node.kill()
        shutil.rmtree(place.node.paths.attachments)
        place.end("cMoved")
        place.node.start()
        place.attach("cEnds")
        shutil.rmtree(place.node.paths.attachments)
        place.end("cEnds")
        place.until_ended("cEnds")  # the same look saw the other
        assert place.left("cMoved") != []
    finally:
        process.kill()
        process.wait()
    place.until_ended("cMoved")


FOREIGN = """#!/bin/sh
cat >/dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo "$$ $CNI_CONTAINERID" >{folder}/held
    exec sleep 600
fi
rm -f {folder}/held
"""


def test_an_add_that_was_cut_off_is_ended_with_its_namespace(place: Place) -> None:
    node, folder = place.node, place.root / "foreign"
    folder.mkdir()
    program = node.paths.cni_bin / "slow-ipam"
    program.write_text(FOREIGN.format(folder=folder))
    program.chmod(0o755)
    sandbox = place.sandbox("cHalf")
    config = {**BRIDGE, "ipam": {"type": "slow-ipam"}, "name": NAME, "cniVersion": "1.0.0"}
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "cHalf", "CNI_NETNS": str(sandbox.path), "CNI_IFNAME": "eth0"}
    env |= {"CNI_PATH": str(node.paths.cni_bin)}
    with subprocess.Popen(
        [node.paths.cni_bin / "nodeplug-bridge"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env
    ) as adding:
        assert adding.stdin is not None
        adding.stdin.write(json.dumps(config).encode())
        adding.stdin.close()
        until(lambda: (folder / "held").exists() and (folder / "held").read_text() != "")
        node.kill()
        adding.kill()  # and so is its runtime
    os.kill(int((folder / "held").read_text().split()[0]), signal.SIGKILL)
    assert place.left("cHalf") != []
    place.end("cHalf")
    node.start()
    place.until_ended("cHalf")


KINDS = ["address", "address", "backup", "limit", "masquerading", "masquerading", "ports", "rules"]


def of(rows: list[dict[str, Any]], container: str) -> dict[str, set[tuple[str, bool]]]:
    """State, and whether it was freed, of the things of a container, by kind."""
    found: dict[str, set[tuple[str, bool]]] = {}
    for row in rows:
        if row["container_id"] == container:
            found.setdefault(row["kind"], set()).add((row["state"], row["freed"]))
    return found


def test_without_a_daemon_gc_shows_and_then_frees_everything_of_a_container_that_is_gone(place: Place) -> None:
    lives = place.attach("cLives", portMappings=[{"hostPort": 20081, "containerPort": 80, "protocol": "tcp"}])
    place.attach("cEnds", **PORTS)
    place.node.kill()
    place.end("cEnds")
    place.age("cEnds")
    place.until_veths_ended("cEnds")
    before = place.left("cEnds")
    rows = place.gc("--dry-run")
    assert place.left("cEnds") == before
    assert of(rows, "cEnds") == {kind: {("left over", False)} for kind in KINDS}
    assert of(rows, "cLives") == {kind: {("held", False)} for kind in [*KINDS, "interface"]}
    assert {row["state"] for row in rows if row["kind"] == "check of MACs"} == {"held", "left over"}
    assert all(row["why"] for row in rows)
    rows = place.gc()
    assert of(rows, "cEnds") == {kind: {("left over", True)} for kind in KINDS}
    shutil.rmtree(place.node.paths.attachments)  # the daemon's own, which it ends as it starts
    assert place.left("cEnds") == []
    assert of(place.gc(), "cEnds") == {}
    place.node.start()
    assert place.left("cEnds") == []
    kinds = [*KINDS, "interface", "attachment"]  # the last one is what the daemon says
    assert of(place.gc("--dry-run"), "cLives") == {kind: {("held", False)} for kind in kinds}
    (row,) = (line for line in place.said("--dry-run").splitlines() if line.startswith("│ interface "))
    assert [cell.strip() for cell in row.split("│")][3:7] == ["reconciled", "cLives", "eth0", "held"]
    place.runtime.delete("cLives", lives.path)


def test_with_a_daemon_gc_leaves_to_it_what_it_would_bring_back(place: Place) -> None:
    place.attach("cEnds", **PORTS)
    place.node.kill()
    place.end("cEnds")
    place.until_veths_ended("cEnds")
    shutil.rmtree(place.node.paths.attachments)
    cached = place.runtime.cache.path("cEnds", "eth0")
    document = json.loads(cached.read_text())
    cached.write_text(json.dumps({**document, "netns": "/no/such/pod"}))
    place.node.start()
    place.age("cEnds")
    why = "the folder of its network namespace /no/such/pod does not exist here"
    rows = [row for row in place.gc("--unknown") if row["container_id"] == "cEnds"]
    assert [(row["state"], row["why"], row["freed"]) for row in rows if row["kind"] == "attachment"] == [
        ("unknown", why, False)
    ]
    freed = {row["kind"] for row in rows if row["freed"]}
    assert freed == {"address", "backup", "limit"}  # the daemon itself has ended the masquerading, at its start
    assert {row["kind"] for row in rows} - freed == {"attachment", "ports", "rules"}
    cached.write_text(json.dumps(document))
    place.until_ended("cEnds")
