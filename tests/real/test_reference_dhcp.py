"""dhcp of the reference, with its daemon, and ours, side by side: each has a DHCP server of its own behind a bridge."""

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need
from tests.real.refused import INTERNAL, NAMES_GO_TYPES, Bad, Programs, mistakes, programs_with
from tests.real.twins import Side, node_with, prepare, twins, unmeant

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.waiting import until

DNSMASQ = "/usr/sbin/dnsmasq"
PLUGINS = ("bridge", "dhcp")
KEYS: Mapping[str, dict[str, Any]] = {
    "plain": {},
    "routes": {"request": [{"option": "121"}]},
    "provided": {
        "provide": [
            {"option": "host-name", "value": "pod1"},
            {"option": "dhcp-client-identifier", "value": "name1"},
            {"option": "user-class", "value": "class1"},
            {"option": "vendor-class-identifier", "value": "vendor1"},
        ]
    },
    "static-routes": {"request": [{"option": "33"}]},
    "skipping": {"request": [{"option": "subnet-mask"}, {"option": "routers", "skipDefault": True}]},
}


@dataclass(frozen=True)
class Served:
    """A side whose bridge br0 leads to a server, and what the reference's daemon listens at."""

    side: Side
    server: Path
    socket: Path

    def network(self, version: str, **ipam: Any) -> CniRuntime:
        plugin: dict[str, Any] = {"type": "bridge", "bridge": "br0"}
        kind = "nodeplug-dhcp" if self.side.ours else "dhcp"
        plugin["ipam"] = {"type": kind, "daemonSocketPath": str(self.socket), **ipam}
        return self.side.runtime({"cniVersion": version, "name": "leased", "plugins": [plugin]})

    def log(self) -> str:
        return (self.server / "log").read_text()

    def leases(self) -> list[str]:
        """Address, host name and client identifier of each lease."""
        lines = (line.split() for line in (self.server / "leases").read_text().splitlines())
        return [" ".join(words[2:]) for words in lines]

    def told(self) -> list[str]:
        """What the server was told and asked for, once: the first message of the reference is often lost."""
        lines = re.findall(r"(?:requested options|client provides|vendor class|user class|client).*", self.log())
        return sorted({line for line in lines if "MAC" not in line})


@contextmanager
def serving(side: Side) -> Iterator[Served]:
    folder, sock = side.folder / "server", side.folder / "dhcp.sock"
    folder.mkdir()
    with ExitStack() as stack:
        place = stack.enter_context(Sandbox(side.folder / "place"))
        words = f"link add vsrv master br0 type veth peer name srv0 netns {place.path}"
        side.run(side.host, "ip", *words.split())
        side.run(side.host, "ip", "link", "set", "vsrv", "up")
        for one in ("link set srv0 up", "addr add 10.99.0.1/24 dev srv0"):
            side.run(place, "ip", *one.split())
        options = ["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=srv0", "--bind-interfaces"]
        options += ["--user=root", "--pid-file=", "--no-ping", "--log-dhcp", "--dhcp-authoritative"]
        options += ["--dhcp-range=10.99.0.10,10.99.0.10,255.255.255.0,10m", f"--dhcp-leasefile={folder}/leases"]
        options += ["--dhcp-option=121,10.5.0.0/16,10.99.0.3", "--dhcp-option=33,198.51.100.0,10.99.0.4"]
        options += ["--dhcp-option=6,10.99.0.9", f"--log-facility={folder}/log"]
        commands = [["nsenter", f"--net={place.path}", DNSMASQ, *options]]
        if not side.ours:
            program = [str(side.bins[0] / "dhcp"), "daemon", "-socketpath", str(sock), "-timeout", "500ms"]
            commands.append(["nsenter", f"--net={side.host.path}", *program])
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
        made = Served(side, folder, sock)
        until(lambda: (folder / "log").exists() and "DHCP, sockets bound" in made.log())
        until(lambda: side.ours or sock.exists())
        yield made


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    with node_with(*PLUGINS) as made:
        yield made


@pytest.fixture
def served(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[list[Served]]:
    need("dnsmasq")
    with ExitStack() as stack:
        sides = stack.enter_context(twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), PLUGINS)))
        for side in sides:
            prepare(side, "br0")
        yield [stack.enter_context(serving(side)) for side in sides]


def attached(served: list[Served], version: str, keys: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Attach, look, check and end a container on both sides."""
    found = []
    for one in served:
        runtime = one.network(version, **keys)
        result = one.side.add(runtime, {})
        world = one.side.world()
        if version >= "0.4.0":
            one.side.check(runtime)
        found.append(
            {
                "result": result,
                "leases": one.leases(),
                "told": one.told(),
                **{key: value for key, value in world.items() if key in {"pod links", "pod routes", "pod sysctls"}},
            }
        )
        one.side.delete(runtime)
    return found


@pytest.mark.parametrize("keys", KEYS)
def test_a_lease_comes_to_the_same_and_the_server_is_told_the_same(served: list[Served], keys: str) -> None:
    assert unmeant(*attached(served, "1.0.0", KEYS[keys])) == []
    until(lambda: served[1].leases() == [])  # the reference's release does not reach every server


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.1.0"])
def test_results_are_equal_in_every_version(served: list[Served], version: str) -> None:
    theirs, ours = attached(served, version, KEYS["routes"])
    assert unmeant({"result": theirs["result"]}, {"result": ours["result"]}) == []


def leased(env: Mapping[str, str | None], code: int = 7, says: str = "", why: str = "", **ipam: Any) -> Bad:
    config: dict[str, Any] = {"ipam": {"type": "dhcp", **ipam}}
    if env.get("CNI_COMMAND") == "CHECK":
        config["prevResult"] = {"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]}
    return Bad("dhcp", config, env, code, says, why)


BAD = {
    "no-interface": leased({}, INTERNAL),
    "unknown-option-provided": leased({}, provide=[{"option": "nope", "value": "x"}]),
    "unknown-option-asked-for": leased({}, request=[{"option": "nope"}]),
    "option-too-big": leased({}, request=[{"option": "300"}]),
    "provide-a-word": leased(
        {},
        says="key 'ipam.provide': input should be a valid tuple, found 'x'",
        why=NAMES_GO_TYPES,
        provide="x",
    ),
    "args-unknown": leased({"CNI_ARGS": "A=1"}, INTERNAL),
    "check-no-lease": leased(
        {"CNI_COMMAND": "CHECK"},
        INTERNAL,
        says="dhcp: no lease is known for c0/net/eth0; recreate the container c0",
        why="CHECK changes nothing; the reference asks for a lease",
    ),
    "no-such-netns": leased(
        {"CNI_NETNS": "/no/such/netns"},
        8,
        says='failed to open netns "/no/such/netns"',
        why="the entrypoint opened it, or did not; the daemon does not know why",
    ),
}


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[Programs]:
    with programs_with(consumer("cni"), "dhcp") as made:
        sock = made.folder / "dhcp.sock"
        words = [str(made.bins["reference"] / "dhcp"), "daemon", "-socketpath", str(sock), "-timeout", "100ms"]
        words += ["-resendmax", "100ms", "-resendtimeout", "300ms"]
        with subprocess.Popen(["nsenter", f"--net={made.host.path}", *words], stderr=subprocess.DEVNULL) as daemon:
            until(sock.exists)
            yield made
            daemon.terminate()


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_the_words_of_the_reference(programs: Programs, name: str) -> None:
    bad = BAD[name]
    assert isinstance(bad.config, dict)
    ipam = {**bad.config["ipam"], "daemonSocketPath": str(programs.folder / "dhcp.sock")}
    assert mistakes(programs, replace(bad, config={**bad.config, "ipam": ipam})) == []
