"""What goes wrong around an ADD, with the reference's plugins and ours: the sentences are alike, ours leave nothing."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import Side, node_with, prepare, twins

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.waiting import until

MAIN: Mapping[str, dict[str, Any]] = {
    "bridge": {"bridge": "br0", "isGateway": True, "ipMasq": True},
    "ptp": {"ipMasq": True},
    "macvlan": {"master": "up0"},
    "host-device": {"device": "up0"},
    "tap": {},
}
ANSWER = '{"cniVersion": "1.0.0", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]}'
MISBEHAVED: Mapping[str, tuple[str, str]] = {
    "junk": ("echo junk", "failed to unmarshal raw result: "),
    "nothing": ("exit 0", "failed to unmarshal raw result: "),
    "dies": ("kill -9 $$", "netplugin failed with no error message: signal: killed"),
    "fails-and-says-nothing": ("exit 3", "netplugin failed with no error message: exit status 3"),
    "fails-on-stderr": ("echo why >&2; exit 1", 'netplugin failed: "why'),
    "fails-with-junk": ("echo junk; exit 1", 'netplugin failed but error parsing its diagnostic message "junk'),
    "error-with-success": ("""echo '{"code": 7, "msg": "no"}'""", "IPAM plugin returned missing IP config"),
    "no-addresses": ("""echo '{"cniVersion": "1.0.0"}'""", "IPAM plugin returned missing IP config"),
    "error": ("""echo '{"code": 123, "msg": "no lease", "details": "why"}'; exit 1""", "no lease; why"),
    "missing": ("", 'failed to find plugin "foreign" in path ['),
}
"""What an IPAM plugin does at ADD, and how the error begins."""
EACH = [("bridge", fault) for fault in MISBEHAVED]
EACH += [(kind, fault) for kind in MAIN if kind != "bridge" for fault in ("junk", "dies", "error-with-success")]
BY_CHANCE = re.compile(
    r"^\d+: |@\w+|qdisc \S+ (?=state)|state \w+|NO-CARRIER,|,LOWER_UP|,M-DOWN|link/ether.*|valid_lft.*"
)


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with(*MAIN, "host-local") as made:
        yield made


@pytest.fixture
def scripts(short_path: Path) -> Path:
    """A folder of CNI_PATH for plugins of a test's own."""
    folder = short_path / "bin"
    folder.mkdir()
    return folder


@pytest.fixture
def sides(
    short_path: Path, scripts: Path, node: ScratchNode, consumer: Callable[[str], Path]
) -> Iterator[tuple[Side, ...]]:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, scripts, kinds=((), [*MAIN])) as made:
        for side in made:
            prepare(side, "up0")
        yield made


def foreign(scripts: Path, add: str) -> None:
    """Write an IPAM plugin that does something at ADD, and succeeds otherwise; nothing removes it."""
    path = scripts / "foreign"
    path.unlink(missing_ok=True)
    if add:
        path.write_text(f"#!/bin/sh\ncase $CNI_COMMAND in ADD) {add} ;; esac\n")
        path.chmod(0o755)


def network(side: Side, kind: str, **keys: Any) -> CniRuntime:
    plugin = {"type": kind, **MAIN[kind], "ipam": {"type": "foreign"}, **keys}
    return side.runtime({"cniVersion": "1.0.0", "name": "faults", "plugins": [plugin]})


def refusal(side: Side, runtime: CniRuntime) -> str:
    with pytest.raises(CniError) as caught:
        side.add(runtime)
    return str(caught.value)


def state(side: Side) -> list[str]:
    """Return what the host and the container have, a line for each thing."""
    looks = (side.host, "ip -o link; nft list ruleset"), (side.pod, "ip -o link; ip -o addr")
    lines = [line for where, script in looks for line in side.run(where, "sh", "-c", script).splitlines()]
    return sorted(BY_CHANCE.sub("", line).strip() for line in lines if "fe80" not in line)


def new(side: Side, before: list[str]) -> list[str]:
    return [line for line in state(side) if line not in before]


@pytest.mark.parametrize(("kind", "fault"), EACH)
def test_an_ipam_plugin_that_misbehaves_leaves_nothing(
    sides: tuple[Side, ...], scripts: Path, kind: str, fault: str
) -> None:
    body, words = MISBEHAVED[fault]
    for side in sides:
        foreign(scripts, f"echo '{ANSWER}'")
        good = network(side, kind)
        side.add(good)
        side.delete(good)  # what stays for the next container is there
        before = state(side)
        foreign(scripts, body)
        assert words in refusal(side, network(side, kind))
        if side.ours:
            assert new(side, before) == []
        foreign(scripts, f"echo '{ANSWER}'")
        side.delete(network(side, kind))
        side.add(good)
        side.delete(good)


def test_a_full_bridge_is_told_and_leaves_nothing(sides: tuple[Side, ...]) -> None:
    """1023 ports: both ends of 511 pairs, and one of another."""
    lines = ["link add br0 type bridge", "link add one0 master br0 type veth peer name one1", "link set br0 up"]
    for number in range(511):
        lines += [f"link add p{number} master br0 type veth peer name q{number}", f"link set q{number} master br0"]
    pool = {"type": "host-local", "subnet": "10.77.0.0/24"}
    for side in sides:
        batch = side.folder / "batch"
        batch.write_text("\n".join(lines))
        side.run(side.host, "ip", "-batch", str(batch))
        before = state(side)
        runtime = network(side, "bridge", ipam=pool, isGateway=False, ipMasq=False)
        said = refusal(side, runtime)
        assert re.search('failed to connect "veth[0-9a-f]{8}" to bridge br0: exchange full', said), said
        if side.ours:
            assert "code 11: " in said
            assert "1023 ports" in said
            assert new(side, before) == []
            assert [*(side.folder / "addresses").rglob("10.*")] == []
        side.delete(runtime)
        side.run(side.host, "ip", "link", "delete", "one0")
        side.add(runtime)
        side.delete(runtime)


@pytest.mark.parametrize("kind", MAIN)
def test_status_tells_a_used_up_range_with_figures(sides: tuple[Side, ...], kind: str) -> None:
    """The reference is ready."""
    pool = {"type": "host-local", "subnet": "10.77.0.0/24", "rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.9"}
    for side in sides:
        runtime = network(side, kind, ipam=pool)
        runtime.conflist = {**runtime.conflist, "cniVersion": "1.1.0"}
        side.add(runtime)
        told: AbstractContextManager[Any]
        told = pytest.raises(CniError, match=r"code 50: .* has 0 of 1 addresses free") if side.ours else nullcontext()
        with side.host.netns.entered(), told:
            runtime.status()
        side.delete(runtime)


@pytest.mark.parametrize("kind", MAIN)
def test_a_namespace_that_vanishes_during_add_leaves_nothing(
    sides: tuple[Side, ...], node: ScratchNode, scripts: Path, kind: str
) -> None:
    """Whoever made it removes its path while IPAM is asked; a runtime then sends DEL without a namespace."""
    side = sides[1]
    foreign(scripts, f"echo '{ANSWER}'")
    runtime = network(side, kind)
    side.add(runtime)
    side.delete(runtime)
    before = state(side)
    foreign(scripts, f"umount -l $CNI_NETNS; rm $CNI_NETNS; echo '{ANSWER}'")
    with Sandbox(side.folder / "fleeting") as pod, side.host.netns.entered(), suppress(CniError):
        runtime.add("c1", pod.path)
    assert not (side.folder / "fleeting").exists()
    with side.host.netns.entered():
        runtime.delete("c1")
    until(lambda: new(side, before) == [], found=lambda: new(side, before))
    left = [
        path for path in node.root.rglob("*faults*c1*") if path.parent.name != "devices"
    ]  # by which a card comes back
    assert left == []


@pytest.fixture(scope="module")
def hasty() -> Iterator[ScratchNode]:
    """A daemon that waits a second for an ADD."""
    with node_with("host-local", sections='[plugins.bridge]\ndeadline = { cni_add = "1s" }\n') as made:
        yield made


@pytest.mark.parametrize("late", [f"echo '{ANSWER}'", "exit 1"], ids=["success", "failure"])
def test_an_ipam_plugin_that_hangs_is_told_in_time_and_leaves_nothing(
    short_path: Path, scripts: Path, hasty: ScratchNode, late: str
) -> None:
    """What it says in the end comes too late: the ADD has failed, and its DEL follows."""
    go = short_path / "go"
    with twins(short_path, hasty.paths.cni_bin, scripts, kinds=(("bridge",),)) as (side,):
        prepare(side)
        before = state(side)
        foreign(scripts, f"while [ ! -e {go} ]; do sleep 0.02; done; {late}")
        runtime = network(side, "bridge")
        told = refusal(side, runtime)
        assert re.search(r"code 11: the delegate \S+/foreign did not end within 0\.[0-9]+ s and was killed", told), told
        go.touch()
        side.delete(runtime)
        assert [line for line in new(side, before) if "veth" in line or "eth0" in line or "10.77.0.5" in line] == []
