"""Containers that the reference attached and nodeplug ends, and the way back: nothing is lost, and nothing stays.

`old` are Debian's plugins, which know no nftables; `current` are today's.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.real.moving import DEBIAN, KEEPERS, PROGRAMS, Mover, hand_over, refuse_missing_programs, use

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.reference import nft as reference_nft
from nodeplug_net.reference import way_back
from nodeplug_net.reference.recorded import Node


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has a "host" and addresses of its own."""
    with (
        TemporaryDirectory(prefix="np-", dir="/tmp") as root,
        ScratchNode(Path(root), "[plugins.bridge]\n[plugins.host-local]\n") as made,
    ):
        assert made.run("install").returncode == 0
        yield made


@pytest.fixture
def mover(short_path: Path, generation: str, consumer: Callable[[str], Path], node: ScratchNode) -> Iterator[Mover]:
    refuse_missing_programs(generation)
    with ExitStack() as stack:
        host = stack.enter_context(Sandbox(short_path / "host"))
        (short_path / "bin").mkdir()
        yield Mover(short_path, consumer("cni") if generation == "current" else DEBIAN, node, host, stack)


@pytest.fixture(params=KEEPERS)
def kept(mover: Mover, request: pytest.FixtureRequest) -> Mover:
    use(mover, request.param)
    return mover


EVERY = pytest.mark.parametrize(
    ("generation", "kept"),
    [("old", KEEPERS[0]), ("old", KEEPERS[1]), *(("current", keeper) for keeper in KEEPERS)],
    indirect=True,
)


@EVERY
def test_a_container_of_the_reference_is_checked(kept: Mover) -> None:
    kept.add("bridge", "c0")
    with kept.host.netns.entered():
        kept.runtime("nodeplug-bridge").check("c0")


@EVERY
def test_a_check_of_it_notices_lost_rules(kept: Mover) -> None:
    kept.add("bridge", "c0")
    kept.run("nft", "flush", "ruleset")
    for program in PROGRAMS:
        kept.run(f"{program}-legacy", "-t", "nat", "-F")
    with kept.host.netns.entered(), pytest.raises(CniError, match=r"address 10\.77\.0\.2 is not masqueraded"):
        kept.runtime("nodeplug-bridge").check("c0")


@EVERY
def test_its_end_leaves_nothing(kept: Mover) -> None:
    pod = kept.add("bridge", "c0")
    assert kept.rules()
    kept.delete("nodeplug-bridge", "c0", pod.path)
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


@EVERY
def test_its_end_leaves_nothing_when_its_namespace_is_gone(kept: Mover) -> None:
    kept.add("bridge", "c0")
    kept.run("ip", "link", "delete", kept.ports()[0])
    kept.delete("nodeplug-bridge", "c0", None)
    assert (kept.rules(), kept.addresses()) == ([], [])


@EVERY
def test_its_end_leaves_what_others_have(kept: Mover) -> None:
    first = kept.add("bridge", "c0")
    kept.add("bridge", "c1")
    others = [line for line in kept.rules() if "10.77.0.3" in line or "fd77::3" in line]
    kept.delete("nodeplug-bridge", "c0", first.path)
    kept.delete("nodeplug-bridge", "c0", None)
    assert kept.addresses() == ["10.77.0.3", "fd77::3"]
    assert others
    assert set(others) <= set(kept.rules())
    assert not [line for line in kept.rules() if "10.77.0.2" in line or "fd77::2" in line]


@EVERY
def test_the_end_of_one_interface_leaves_the_rules_of_the_other(kept: Mover) -> None:
    pod = kept.add("bridge", "c0")
    kept.add("bridge", "c0", "eth1", pod)
    kept.delete("nodeplug-bridge", "c0", pod.path)
    left = [line for line in kept.rules() if "10.77.0.3" in line or "fd77::3" in line]
    assert len([line for line in left if "saddr" in line or "-s " in line]) == 2
    kept.delete("nodeplug-bridge", "c0", pod.path, "eth1")
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


@pytest.mark.parametrize(("generation", "kept"), [("current", keeper) for keeper in KEEPERS], indirect=True)
def test_a_collection_ends_what_is_not_valid_and_leaves_the_rest(kept: Mover) -> None:
    for container in ("c0", "c1"):
        kept.add("bridge", container)
    port = kept.ports()[1]
    with kept.host.netns.entered():
        forget(kept).gc([("c1", "eth0")])
    assert kept.addresses() == ["10.77.0.3", "fd77::3"]
    assert kept.ports() == [port]
    assert not [line for line in kept.rules() if "10.77.0.2" in line or "fd77::2" in line]
    assert [line for line in kept.rules() if "10.77.0.3" in line]
    with kept.host.netns.entered():
        kept.runtime("nodeplug-bridge").check("c1")


@EVERY
def test_rules_of_other_programs_stay(kept: Mover) -> None:
    program = "iptables-legacy" if kept.keeper == "iptables-legacy" else "iptables-nft"
    own = ["-s", "10.77.0.2/32", "-m", "comment", "--comment", 'name: "moving" id: "c0"', "-j", "RETURN"]
    pod = kept.add("bridge", "c0")
    kept.run(program, "-t", "nat", "-A", "POSTROUTING", *own)
    kept.delete("nodeplug-bridge", "c0", pod.path)
    assert len(kept.rules()) == 1


CURRENT = pytest.mark.parametrize(("generation", "kept"), [("current", KEEPERS[0])], indirect=True)


def forget(mover: Mover) -> CniRuntime:
    """A runtime whose cache was lost, so that GC ends nothing one by one."""
    runtime = mover.runtime("nodeplug-bridge")
    runtime.conflist = {**runtime.conflist, "cniVersion": "1.1.0"}
    runtime.cache = type(runtime.cache)("moving", None)
    return runtime


def lease(mover: Mover, address: str, content: str) -> None:
    (mover.folder / "addresses/moving" / address).write_text(content)


@CURRENT
def test_a_collection_leaves_a_container_whose_file_names_no_interface(kept: Mover) -> None:
    """Files of the reference before 0.6."""
    kept.add("bridge", "c0")
    for address in kept.addresses():
        lease(kept, address, "c0")
    before = kept.rules(), kept.addresses(), kept.ports()
    with kept.host.netns.entered():
        forget(kept).gc([("c0", "eth0")])
    assert (kept.rules(), kept.addresses(), kept.ports()) == before


@CURRENT
def test_a_container_whose_file_names_no_interface_is_ended_whole(kept: Mover) -> None:
    pod = kept.add("bridge", "c0")
    for address in kept.addresses():
        lease(kept, address, "c0")
    kept.delete("nodeplug-bridge", "c0", pod.path)
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


@CURRENT
def test_a_collection_leaves_a_container_that_has_another_address_beside_its_own(kept: Mover) -> None:
    pod = kept.add("bridge", "c0")
    for number in range(10, 18):
        lease(kept, f"10.77.0.{number}", f"gone{number}\r\neth0")
        kept.run("nsenter", f"--net={pod.path}", "ip", "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
    before = kept.ports()
    with kept.host.netns.entered():
        forget(kept).gc([("c0", "eth0")])
    assert kept.ports() == before
    assert kept.addresses() == ["10.77.0.2", "fd77::2"]


@CURRENT
def test_a_mistake_in_a_key_that_is_not_needed_keeps_nothing(kept: Mover) -> None:
    pod = kept.add("bridge", "c0")
    broken = kept.runtime("nodeplug-bridge")
    plugin = dict(broken.conflist["plugins"][0])
    plugin["ipam"] = {**plugin["ipam"], "resolvConf": "/nonexistent", "routes": [{"dst": "nonsense"}]}
    broken.conflist = {**broken.conflist, "plugins": [plugin]}
    with kept.host.netns.entered():
        broken.delete("c0", pod.path)
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


# --- the way back ----------------------------------------------------------------------------------------------------

BACK = pytest.mark.parametrize(
    ("generation", "kept", "backend"),
    [
        ("old", KEEPERS[0], "iptables"),
        ("current", KEEPERS[0], "iptables"),
        ("current", KEEPERS[2], "nftables"),
    ],
    indirect=["generation", "kept"],
)


@BACK
def test_the_reference_ends_what_was_handed_over(kept: Mover, backend: str) -> None:
    pod = kept.add("nodeplug-bridge", "c0")
    told = hand_over(kept, "--apply", "--backend", backend)
    assert [(one["container_id"], one["address"], one["handed_over"]) for one in told] == [
        ("c0", "10.77.0.2/24", True),
        ("c0", "fd77::2/64", True),
    ]
    with kept.host.netns.entered():
        kept.runtime("bridge").check("c0")
    kept.delete("bridge", "c0", pod.path)
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


@BACK
def test_what_is_handed_over_is_what_the_reference_writes(kept: Mover, backend: str) -> None:
    kept.add("nodeplug-bridge", "c0")
    hand_over(kept, "--apply", "--backend", backend)
    ours = kept.rules()
    kept.add("bridge", "c1")
    theirs = Counter(kept.rules()) - Counter(ours)
    assert Counter(map(nameless, theirs.elements())) == Counter(map(nameless, ours))
    assert ours


def nameless(line: str) -> str:
    return re.sub(r"CNI-[0-9a-f]{24}|-[0-9a-f]{16}|\bc[01]\b|(77\.0\.|77::)[23]|# handle \d+", "_", line)


@BACK
def test_handing_over_can_be_repeated(kept: Mover, backend: str) -> None:
    kept.add("nodeplug-bridge", "c0")
    hand_over(kept, "--apply", "--backend", backend)
    before = kept.rules()
    assert hand_over(kept, "--apply", "--backend", backend) == []
    assert kept.rules() == before


@BACK
def test_an_interrupted_handing_over_is_finished(kept: Mover, backend: str) -> None:
    """Both kinds of rules are there when it is ended in between."""
    pod = kept.add("nodeplug-bridge", "c0")
    hand_over(kept, "--apply", "--backend", backend)
    kept.add("nodeplug-bridge", "c0", pod=pod)  # a repeated ADD masquerades again
    before = kept.rules()
    hand_over(kept, "--apply", "--backend", backend)
    assert set(kept.rules()) < set(before)
    kept.delete("bridge", "c0", pod.path)
    assert kept.rules() == []


@BACK
def test_nothing_changes_before_it_is_asked_for(kept: Mover, backend: str) -> None:
    kept.add("nodeplug-bridge", "c0")
    before = kept.rules()
    assert [one["handed_over"] for one in hand_over(kept, "--backend", backend)] == [False, False]
    assert kept.rules() == before


@BACK
def test_what_was_handed_over_is_checked_and_ended_by_ours_too(kept: Mover, backend: str) -> None:
    pod = kept.add("nodeplug-bridge", "c0")
    hand_over(kept, "--apply", "--backend", backend)
    with kept.host.netns.entered():
        kept.runtime("nodeplug-bridge").check("c0")
    kept.delete("nodeplug-bridge", "c0", pod.path)
    assert (kept.rules(), kept.addresses(), kept.ports()) == ([], [], [])


@pytest.mark.parametrize(  # Debian's plugins fail where they find no rules of theirs
    ("generation", "kept", "backend"), [("current", KEEPERS[0], "iptables")], indirect=["generation", "kept"]
)
def test_what_the_reference_ended_before_is_removed(kept: Mover, backend: str) -> None:
    pod = kept.add("nodeplug-bridge", "c0")
    kept.delete("bridge", "c0", pod.path)
    assert kept.rules()
    assert [(one["ended"], one["handed_over"]) for one in hand_over(kept, "--apply", "--backend", backend)] == [
        (True, False),
        (True, False),
    ]
    assert kept.rules() == []


@pytest.mark.parametrize(("generation", "kept"), [("current", KEEPERS[0])], indirect=True)
def test_names_that_labels_shorten_are_found_in_the_files_of_addresses(kept: Mover) -> None:
    container = "c" * 100
    pod = kept.add("nodeplug-bridge", container)
    assert {one["container_id"] for one in hand_over(kept, "--apply")} == {container}
    kept.delete("bridge", container, pod.path)
    assert kept.rules() == []


@pytest.mark.parametrize(("generation", "kept"), [("current", KEEPERS[2])], indirect=True)
def test_a_container_that_ends_while_it_is_handed_over_leaves_nothing(kept: Mover) -> None:
    pod = kept.add("nodeplug-bridge", "c0")
    log = logging.LoggerAdapter(logging.getLogger("nodeplug.net"))
    with kept.host.netns.entered(), open_nft() as netlink:
        planned = way_back.entries(Masquerade(netlink), Node(kept.node.paths.run, kept.folder / "addresses"))

        def write(entries: Iterable[tuple[Attachment, Interface]]) -> None:
            kept.runtime("nodeplug-bridge").delete("c0", pod.path)
            reference_nft.write(netlink, entries)

        way_back.apply(planned, netlink, write, log)
    assert kept.rules() == []


@CURRENT
def test_one_network_is_handed_over_alone(kept: Mover) -> None:
    kept.add("nodeplug-bridge", "c0")
    before = kept.rules()
    assert hand_over(kept, "--apply", "--network", "another") == []
    assert kept.rules() == before
    assert len(hand_over(kept, "--apply", "--network", "moving")) == 2
