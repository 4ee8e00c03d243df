"""The whole chain goes to nodeplug and back while containers run; connections go on, and nothing stays."""

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.node import killing
from tests.node.portmap.lab import end_servers, mapping
from tests.real.moving import DEBIAN, KEEPERS, hand_over, refuse_missing_programs, use
from tests.real.moving_chain import MANY, OURS, PORTS, RATES, REACHED, THEIRS, Chain, attach, goes_on

from nodeplug.testing import Sandbox, ScratchNode
from nodeplug.testing.waiting import until

PLUGINS = ("bridge", "portmap", "bandwidth", "tuning", "firewall")


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has a "host" and addresses of its own."""
    toml = "".join(f"[plugins.{name}]\n" for name in PLUGINS) + "[plugins.host-local]\n"
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), toml) as made:
        assert made.run("install").returncode == 0
        yield made


@pytest.fixture
def chain(
    short_path: Path,
    generation: str,
    keeper: str,
    consumer: Callable[[str], Path],
    node: ScratchNode,
) -> Iterator[Chain]:
    refuse_missing_programs(generation)
    with ExitStack() as stack:
        host = stack.enter_context(Sandbox(short_path / "host"))
        (short_path / "bin").mkdir()
        reference = consumer("cni") if generation == "current" else DEBIAN
        made = Chain(short_path, reference, node, host, stack, asked={"bandwidth": RATES})
        made.asked["portMappings"] = [*PORTS, *(MANY if keeper != "iptables-legacy" else [])]
        use(made, keeper)
        yield made
        end_servers()


THERE = pytest.mark.parametrize(
    ("generation", "keeper"), [("old", KEEPERS[0]), *(("current", keeper) for keeper in KEEPERS)]
)
BACK = pytest.mark.parametrize(
    ("generation", "keeper", "backend"),
    [("old", KEEPERS[0], "iptables"), ("current", KEEPERS[0], "iptables"), ("current", KEEPERS[2], "nftables")],
)
TODAY = pytest.mark.parametrize(
    ("generation", "keeper", "backend"),
    [("current", KEEPERS[0], "iptables"), ("current", KEEPERS[2], "nftables")],
)
ONE = pytest.mark.parametrize(("generation", "keeper"), [("current", KEEPERS[0])])


@THERE
def test_a_container_of_the_reference_is_checked_and_ended_by_ours(chain: Chain) -> None:
    moving = attach(chain, THEIRS)
    connection = moving.open()
    assert moving.reach() == REACHED
    chain.check(OURS, "c0")
    if chain.keeper != "iptables-legacy":  # where the firewall says at STATUS that it accepts nothing
        chain.mend()
    assert moving.reach() == REACHED
    assert goes_on(connection)
    chain.delete(OURS, "c0", moving.pod.path)
    assert chain.left() == []


@BACK
def test_a_container_of_ours_is_checked_and_ended_by_the_reference(chain: Chain, backend: str) -> None:
    moving = attach(chain, OURS)
    connection = moving.open()
    assert moving.reach() == REACHED
    told = hand_over(chain, "--apply", "--backend", backend)
    assert {one["handed_over"] for one in told} == {True}
    assert [one["port"] for one in told if one["kind"] == "host port"][:2] == ["8080/tcp", "8081/udp"]
    assert not [line for line in chain.everything() if "nodeplug" in line]
    assert moving.reach() == REACHED
    assert goes_on(connection)
    if chain.reference != DEBIAN:  # whose CHECK looks for the ports of IPv4 in the table of IPv6, its own too
        chain.check(THEIRS, "c0")
    chain.delete(THEIRS, "c0", moving.pod.path)
    assert chain.left() == []


@TODAY
def test_what_is_handed_over_is_what_the_reference_writes(chain: Chain, backend: str) -> None:
    pod = chain.add(OURS, "c0")
    hand_over(chain, "--apply", "--backend", backend)
    ours = nameless(chain.everything())
    chain.delete(THEIRS, "c0", pod.path)
    chain.add(THEIRS, "c0", pod=pod)
    assert ours == nameless(chain.everything())


def nameless(lines: list[str]) -> list[str]:
    """Rules of containers and of what they share, without addresses; which empty chains there are does not matter."""
    rules = (line for line in lines if re.search(r"CNI-|hostport|77\.0\.|77::|mark", line))
    return sorted(re.sub(r"(77\.0\.|77::)[23]", "ADDRESS", line) for line in rules if not line.endswith("{"))


@ONE
def test_the_daemon_neither_restores_nor_reserves_what_was_handed_over(chain: Chain) -> None:
    chain.add(OURS, "c0")
    assert not chain.can_bind(8080)
    hand_over(chain, "--apply")
    before = chain.everything()
    chain.mend()
    assert chain.everything() == before
    until(lambda: chain.can_bind(8080))
    assert chain.records() == []


@ONE
def test_it_can_be_repeated_and_changes_nothing_before_it_is_asked_for(chain: Chain) -> None:
    chain.add(OURS, "c0")
    before = chain.everything(), chain.records()
    assert {one["handed_over"] for one in hand_over(chain)} == {False}
    assert (chain.everything(), chain.records()) == before
    hand_over(chain, "--apply")
    after = chain.everything()
    assert hand_over(chain, "--apply") == []
    assert chain.everything() == after


@TODAY
def test_what_was_handed_over_and_attached_again_is_handed_over_whole(chain: Chain, backend: str) -> None:
    """Both kinds of rules are there, as when it is ended in between."""
    pod = chain.add(OURS, "c0")
    hand_over(chain, "--apply", "--backend", backend)
    once = chain.everything()
    chain.add(OURS, "c0", pod=pod)
    hand_over(chain, "--apply", "--backend", backend)
    assert sorted(chain.everything()) == sorted(once)


@TODAY
@pytest.mark.soak
@pytest.mark.parametrize("ending", ["again", "del"])
def test_a_command_that_was_killed_before_any_step_is_completed_by_the_next_one_or_by_del(
    chain: Chain, backend: str, ending: str
) -> None:
    """Whatever it did until then, ports lead to the container, and it reaches others; afterwards nothing is twice."""
    moving = attach(chain, OURS)
    other = add_neighbour(chain, chain.stack.enter_context(Sandbox(chain.folder / "pod-c1")))
    paths = ["--data-dir", str(chain.folder / "addresses"), "--run-dir", str(chain.node.paths.run)]
    words = [str(chain.host.path), "to-reference", "--apply", "--json", "--backend", backend, *paths]

    def delete(kind: str = OURS) -> list[Any]:
        for name, pod in (("c0", moving.pod), ("c1", other)):
            chain.delete(kind, name, pod.path)
        return chain.left()

    def again() -> None:
        assert set(delete()) <= empty
        for file in (chain.folder / "addresses/moving").glob("last_reserved_ip.*"):
            file.unlink()  # so that addresses are the same each time
        chain.add(OURS, "c0", pod=moving.pod)
        add_neighbour(chain, other)

    def whole() -> list[str]:
        status, said = killing.run("tests.real.killed_way_back", "0", *words)
        assert status == 0, said
        return sorted(chain.everything())

    empty = set(delete())  # tables without containers
    again()
    once = whole()
    seen: set[Any] = set()
    for step in killing.every_step("tests.real.killed_way_back", words, least=12, prepare=again):
        labels = [line for line in chain.run("ip", "link").splitlines() if "alias" in line]
        state = (*chain.everything(), *chain.records(), *labels)
        if state in seen:
            continue
        seen.add(state)
        if len(seen) % 2:
            chain.mend()  # a daemon restores what it knows of
        assert (step, moving.reach()) == (step, REACHED)
        if ending == "again":
            assert (step, whole(), chain.records()) == (step, once, [])
    assert len(seen) > 8
    assert delete(THEIRS) == []


def add_neighbour(chain: Chain, pod: Sandbox) -> Sandbox:
    """Attach c1, which has another port of the host."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(chain.asked, "portMappings", [mapping(8090)])
        return chain.add(OURS, "c1", pod=pod)


@ONE
def test_what_was_handed_over_is_ended_by_ours_too(chain: Chain) -> None:
    moving = attach(chain, OURS)
    hand_over(chain, "--apply")
    chain.check(OURS, "c0")
    chain.delete(OURS, "c0", moving.pod.path)
    assert chain.left() == []


@ONE
def test_what_the_reference_ended_before_is_removed(chain: Chain) -> None:
    pod = chain.add(OURS, "c0")
    chain.delete(THEIRS, "c0", pod.path)
    assert [line for line in chain.everything() if "nodeplug" in line]
    told = hand_over(chain, "--apply")
    assert {(one["ended"], one["handed_over"]) for one in told} == {(True, False)}
    assert chain.left() == []


def add_with(chain: Chain, **keys: Any) -> Sandbox:
    """Attach a container of ours with further keys of portmap."""
    pod = chain.stack.enter_context(Sandbox(chain.folder / "pod-c0"))
    with chain.host.netns.entered():
        chain.runtime(OURS, **keys).add("c0", pod.path, capability_args=chain.asked)
    return pod


@pytest.mark.parametrize("generation", ["current"])
@pytest.mark.parametrize(
    ("keeper", "keys"),
    [
        (KEEPERS[0], {"masqAll": True, "markMasqBit": 5}),
        (KEEPERS[0], {"externalSetMarkChain": "OF-ADMIN", "conditionsV4": ["!", "-d", "198.51.100.0/24"]}),
        (KEEPERS[2], {"snat": False, "conditionsV6": ["ip6", "daddr", "!=", "2001:db8:1::/48"]}),
    ],
    ids=["masq-all", "conditions", "no-snat"],
)
def test_every_key_of_portmap_is_handed_over(chain: Chain, keys: dict[str, Any]) -> None:
    for program in ("iptables", "ip6tables"):
        chain.run(program, "-t", "nat", "-N", "OF-ADMIN")
    pod = add_with(chain, **keys)
    hand_over(chain, "--apply", "--backend", "nftables" if chain.keeper == "nftables" else "iptables")
    with chain.host.netns.entered():
        runtime = chain.runtime(THEIRS, **keys)
        runtime.check("c0")
        runtime.delete("c0", pod.path, capability_args=chain.asked)
    assert chain.left() == []


@ONE
def test_conditions_of_the_other_backend_are_refused_and_nothing_is_changed(chain: Chain) -> None:
    add_with(chain, conditionsV4=["!", "-d", "198.51.100.0/24"])
    before = chain.everything()
    with pytest.raises(AssertionError, match="that backend nftables does not know; choose the other one"):
        hand_over(chain, "--apply", "--backend", "nftables")
    assert chain.everything() == before


@ONE
def test_what_no_record_tells_of_stays_and_is_told(chain: Chain) -> None:
    chain.add(OURS, "c0")
    before = chain.everything()
    with pytest.raises(AssertionError, match=r"such as 'nodeplug moving c0 eth0': nothing below .* --run-dir"):
        hand_over(chain, "--apply", "--run-dir", str(chain.folder))
    assert [line for line in chain.everything() if "nodeplug_portmap" in line] == [
        line for line in before if "nodeplug_portmap" in line
    ]


@ONE
def test_what_an_interrupted_call_left_behind_is_removed(chain: Chain) -> None:
    """It ended between a record and the rules that it tells of."""
    pod = chain.add(OURS, "c0")
    hand_over(chain, "--apply")
    once = chain.everything()
    chain.add(OURS, "c0", pod=pod)
    for path in chain.records():
        path.unlink()
    hand_over(chain, "--apply")
    assert sorted(chain.everything()) == sorted(once)


@ONE
def test_the_documented_commands_leave_nothing_to_hand_over(chain: Chain) -> None:
    chain.add(OURS, "c0")
    page = (Path(__file__).parents[2] / "docs/moving-from-the-reference.md").read_text()
    block = page.partition("## Back to the reference")[2].partition("```sh")[2].partition("```")[0]
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    told = [hand_over(chain, *words[3:]) for words in commands if words[:3] == ["nodeplug", "net", "to-reference"]]
    assert len(told) == len(commands) == 3
    assert [len(one) > 0 for one in told] == [True, True, False]
    with chain.host.netns.entered():
        chain.runtime(THEIRS).check("c0")
