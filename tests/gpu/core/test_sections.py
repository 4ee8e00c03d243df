"""One section of a node has its cards, whatever it is called, and knows what containers hold by those before it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nodeplug import ResourceName
from nodeplug.testing import AdmissionError, BlockingKubelet, ScratchNode, host
from nodeplug.testing.plugin_host import RecordingHost
from nodeplug.testing.waiting import until
from nodeplug_gpu.allocations import Allocations
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import card_key

MEM, WHOLE = ResourceName("aliyun.com/gpu-mem"), ResourceName("nvidia.com/gpu")
SUPERVISOR = 'listen = ""\ndevice_poll = "200ms"\npodresources_poll = "200ms"'
MEMORY = 'sharing = "memory"'
EXCLUSIVE = f'sharing = "exclusive"\nresource = "{WHOLE}"'
FIRST, SECOND = "cards = { index = [0] }", "cards = { index = [1] }"


def section(name: str, *entries: str) -> str:
    """Return a section of the GPU plugin with two cards of 8 GiB."""
    resources = "".join(f"[[plugins.{name}.config.resources]]\n{entry}\n" for entry in entries)
    cards = 'driver = "simulated"\npoll = "50ms"\nsimulated = [{ memory = "8Gi", count = 2 }]\n'
    return f'[plugins.{name}]\nuses = "gpu"\n[plugins.{name}.config]\n{cards}{resources}'


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, section("gpu", MEMORY), supervisor=SUPERVISOR, fork=True)
    yield made
    made.stop()


@pytest.fixture
def kubelet(node: ScratchNode) -> Iterator[BlockingKubelet]:
    with BlockingKubelet(node.root / "var/lib/kubelet") as made:
        yield made


def plugins(node: ScratchNode) -> dict[str, Any]:
    return {one["name"]: one for one in node.status()["plugins"]}


def assert_waits(node: ScratchNode, kubelet: BlockingKubelet, resource: str, cards: int) -> None:
    """Hold that cards are listed under a resource, and that none is given away while pods hold them otherwise."""
    kubelet.until(lambda: kubelet.capacity(resource) == cards)
    assert kubelet.allocatable(resource) == 0
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        kubelet.admit("other", {resource: 1})
    assert f"is not allocatable as {resource}: it was advertised as" in node.log


# --- two sections


def test_a_second_section_is_refused_and_both_are_named_with_what_to_do(node: ScratchNode) -> None:
    node.configure(section("gpu", f"{MEMORY}\n{FIRST}") + section("cards", f"{EXCLUSIVE}\n{SECOND}"))
    ours = f"nodeplug {version('nodeplug')}"
    wanted = (
        f"plugin 'cards' of {ours} claims exclusive:nvidia-gpus, which plugin 'gpu' of {ours} owns: it comes first "
        "in the configuration; one section has the cards: put the `resources` of both into it, and remove the other"
    )
    checked = node.run("check-config")
    assert checked.returncode == 1
    assert wanted in " ".join((checked.stdout + checked.stderr).split())
    node.start()
    until(lambda: plugins(node)["gpu"]["state"] == "running")
    assert (plugins(node)["cards"]["state"], plugins(node)["cards"]["reason"]) == ("refused", wanted)


@pytest.mark.parametrize("fronts", [("dra", "device-plugin"), ("device-plugin", "dra")])
def test_two_sections_with_a_front_each_cannot_have_the_same_cards(node: ScratchNode, fronts: tuple[str, str]) -> None:
    named = zip(("gpu", "cards"), (f"{MEMORY}\n{FIRST}", f"{EXCLUSIVE}\n{SECOND}"), fronts, strict=True)
    made = [section(name, entry).replace("uses =", f'serve = "{front}"\nuses =') for name, entry, front in named]
    node.configure("".join(made))
    checked = node.run("check-config")
    said = " ".join((checked.stdout + checked.stderr).split())
    assert checked.returncode == 1
    assert "plugin 'cards' of" in said
    assert "claims exclusive:nvidia-gpus, which plugin 'gpu' of" in said


@pytest.mark.parametrize("fronts", [("dra", "device-plugin"), ("device-plugin", "dra")])
def test_one_resource_cannot_have_two_fronts(node: ScratchNode, fronts: tuple[str, str]) -> None:
    made = [
        f'[plugins.{name}]\nuses = "hostdev"\nserve = "{front}"\n[[plugins.{name}.config.resources]]\n'
        f'resource = "example.com/null"\ngroups = [{{ nodes = [{{ path = "{path}" }}] }}]\n'
        for name, front, path in zip(("one", "other"), fronts, ("/dev/null", "/dev/zero"), strict=True)
    ]
    node.configure("".join(made))
    checked = node.run("check-config")
    said = " ".join((checked.stdout + checked.stderr).split())
    assert checked.returncode == 1
    assert "plugin 'other' of" in said
    assert "claims device:example.com/null, which plugin 'one' of" in said


def test_a_second_section_that_is_added_changes_nothing_for_the_first(
    node: ScratchNode, kubelet: BlockingKubelet
) -> None:
    node.start()
    kubelet.until_allocatable(MEM, 16)
    node.configure(section("gpu", MEMORY) + section("cards", EXCLUSIVE))
    kubelet.until(lambda: "cards" in plugins(node) and plugins(node)["cards"]["state"] == "refused")
    assert (kubelet.allocatable(MEM), kubelet.capacity(WHOLE)) == (16, 0)
    assert node.log.count("plugin gpu runs") == 1


def test_the_second_section_gets_the_cards_when_the_first_goes(node: ScratchNode, kubelet: BlockingKubelet) -> None:
    node.configure(section("gpu", MEMORY) + section("cards", EXCLUSIVE))
    node.start()
    kubelet.until_allocatable(MEM, 16)
    kubelet.admit("one", {MEM: 8})
    kubelet.admit("two", {MEM: 8})
    node.configure(section("cards", EXCLUSIVE))
    assert_waits(node, kubelet, WHOLE, 2)


# --- one section after another


@pytest.mark.parametrize("how", ["reload", pytest.param("restart", marks=pytest.mark.whole), "kill"])
def test_what_containers_hold_stays_known_when_the_section_is_renamed(
    node: ScratchNode, kubelet: BlockingKubelet, how: str
) -> None:
    node.start()
    kubelet.until_allocatable(MEM, 16)
    kubelet.admit("one", {MEM: 8})
    kubelet.admit("two", {MEM: 8})
    if how == "restart":
        node.stop()
    elif how == "kill":
        node.kill()
    node.configure(section("cards", EXCLUSIVE))
    if how != "reload":
        node.start()
    assert_waits(node, kubelet, WHOLE, 2)


def test_a_section_that_is_renamed_goes_on_at_once(node: ScratchNode, kubelet: BlockingKubelet) -> None:
    node.start()
    kubelet.until_allocatable(MEM, 16)
    kubelet.admit("pod", {MEM: 3})
    node.configure(section("cards", MEMORY))
    kubelet.until(lambda: "plugin cards runs" in node.log)
    kubelet.until_allocatable(MEM, 16)
    kubelet.admit("next", {MEM: 8})
    assert not list((node.paths.journal / "gpu").glob("*.json"))


@pytest.mark.whole
def test_two_sections_of_an_older_version_become_one_and_nothing_is_given_twice(
    node: ScratchNode, kubelet: BlockingKubelet
) -> None:
    # Each of the two in turn, for this version does not run them at the same time.
    node.configure(section("gpu", f"{MEMORY}\n{FIRST}"))
    node.start()
    kubelet.until_allocatable(MEM, 8)
    kubelet.admit("one", {MEM: 8})
    node.stop()
    (node.paths.journal / "gpu").rename(node.root / "aside")
    node.configure(section("cards", f"{EXCLUSIVE}\n{SECOND}"))
    node.start()
    kubelet.until_allocatable(WHOLE, 1)
    kubelet.admit("two", {WHOLE: 1})
    node.stop()
    (node.root / "aside").rename(node.paths.journal / "gpu")
    swapped = (f"{MEMORY}\n{SECOND}", f"{EXCLUSIVE}\n{FIRST}")
    node.configure(section("gpu", *swapped))
    node.start()
    assert_waits(node, kubelet, WHOLE, 2)
    assert kubelet.allocatable(MEM) == 0
    node.kill()
    node.configure(section("other", *swapped))
    node.start()
    kubelet.until(lambda: "plugin other runs" in node.log)
    assert_waits(node, kubelet, WHOLE, 2)
    assert kubelet.allocatable(MEM) == 0


def test_two_sections_of_an_older_version_go_on_as_one(node: ScratchNode, kubelet: BlockingKubelet) -> None:
    node.configure(section("gpu", f"{MEMORY}\n{FIRST}"))
    node.start()
    kubelet.until_allocatable(MEM, 8)
    kubelet.admit("one", {MEM: 4})
    node.configure(section("gpu", f"{MEMORY}\n{FIRST}", f"{EXCLUSIVE}\n{SECOND}"))
    kubelet.until_allocatable(WHOLE, 1)
    assert kubelet.allocatable(MEM) == 8


# --- the records

CARD: dict[str, Any] = {"uuid": "GPU-0", "index": 0, "minor": 0, "model": "X", "memory": 8 << 30, "pci": ""}
CARD |= {"numa_node": None, "compute_capability": [9, 0], "mig": False, "instances": []}
TAKE_OVER = """
import os, signal, sys
from pathlib import Path
from nodeplug.testing import host
from nodeplug_gpu.allocations import Allocations
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import card_key
EVENTS = {"os.rename", "os.remove"}
def count(event, _):
    global step
    step -= event in EVENTS
    if event in EVENTS and not step:
        os.kill(os.getpid(), signal.SIGKILL)
def take_over(folder):
    former = [host(folder / name, plugin=name) for name in ("gpu", "other")]
    allocations = Allocations(host(folder / "cards", plugin="cards", former=former), lambda: 0.0)
    sys.addaudithook(count)
    allocations.load()
for step, line in enumerate(sys.stdin, 1):
    child = os.fork()
    if child == 0:
        take_over(Path(line.strip()))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Takes over in the folder of each line of its stdin, in a fork that is killed one step later each time."""


def a_host(folder: Path, name: str, *former: RecordingHost) -> RecordingHost:
    (folder / name).mkdir(exist_ok=True)
    return host(folder / name, plugin=name, former=former)


def note(
    given: RecordingHost, resource: str, sharing: str, limits: str = "", uuid: str = "GPU-0", unit: int = 0
) -> None:
    """Write what a section of version 0.1.0 wrote."""
    data = {"card": CARD | {"uuid": uuid}, "resource": resource, "sharing": sharing, "past": [], "terms": limits}
    given.journal.write(f"card {uuid} {resource} {sharing}", phase="card", data=data)
    if unit:
        given.journal.write(f"unit {resource}", phase="unit", data={"resource": resource, "bytes": unit})


def loaded(given: RecordingHost) -> Allocations:
    allocations = Allocations(given, lambda: 0.0)
    allocations.load()
    return allocations


def keys(given: RecordingHost) -> list[str]:
    return [entry.key for entry in given.journal.entries()]


def test_records_of_other_sections_move_to_the_one_that_has_the_cards(tmp_path: Path) -> None:
    one, other = a_host(tmp_path, "gpu"), a_host(tmp_path, "other")
    note(one, MEM, "memory", unit=1 << 30)
    note(other, WHOLE, "exclusive", uuid="GPU-1")
    cards = a_host(tmp_path, "cards", one, other)
    allocations = loaded(cards)
    assert set(allocations.records) == {("GPU-0", MEM, "memory"), ("GPU-1", WHOLE, "exclusive")}
    assert allocations.unit_size(MEM) == 1 << 30
    assert (keys(one), keys(other)) == ([], [])
    assert loaded(a_host(tmp_path, "cards")).records == allocations.records


def test_what_another_plugin_noted_in_like_words_stays_its_own(tmp_path: Path) -> None:
    third = a_host(tmp_path, "third")
    third.journal.write("slot 7", phase="unit", data={"resource": "acme.com/fpga", "bytes": 4096, "bitstream": "x"})
    third.journal.write("slot 8", phase="unit", data={"resource": "acme.com/fpga", "bytes": float("inf")})
    cards = a_host(tmp_path, "cards", third)
    loaded(cards)
    assert (keys(cards), sorted(keys(third))) == ([], ["slot 7", "slot 8"])


@pytest.mark.whole
def test_a_take_over_that_is_killed_at_any_step_forgets_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def left(folder: Path) -> list[RecordingHost]:
        folder.mkdir()
        one, other = a_host(folder, "gpu"), a_host(folder, "other")
        note(one, MEM, "memory", "MPS", unit=1 << 30)
        note(other, MEM, "memory", "", unit=1 << 29)
        note(other, WHOLE, "exclusive", uuid="GPU-1")
        return [one, other]

    wanted = loaded(a_host(tmp_path / "whole", "cards", *left(tmp_path / "whole")))
    step, status = 0, -signal.SIGKILL
    command = [sys.executable, "-c", TAKE_OVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as takes_over:
        assert takes_over.stdin is not None
        assert takes_over.stdout is not None
        while status == -signal.SIGKILL:
            step += 1
            folder = tmp_path / str(step)
            former = left(folder)
            a_host(folder, "cards")
            takes_over.stdin.write(f"{folder}\n")
            takes_over.stdin.flush()
            status = int(takes_over.stdout.readline())
            again = loaded(a_host(folder, "cards", *former))
            assert (again.records, again.unit_size(MEM)) == (wanted.records, wanted.unit_size(MEM)), step
            assert [keys(one) for one in former] == [[], []]
    assert (status, step) == (0, 9), "three records are written and five removed"


def test_a_card_whose_records_contradict_each_other_waits_for_its_holders(
    tmp_path: Path, make_node: Any, card: Any
) -> None:
    note(a_host(tmp_path, "one"), MEM, "memory", unit=1 << 30)
    note(a_host(tmp_path, "other"), MEM, "memory", unit=1 << 29)
    note(a_host(tmp_path, "one"), MEM, "memory", uuid="GPU-1")
    note(a_host(tmp_path, "other"), MEM, "memory", "MPS", uuid="GPU-2")
    node = make_node([{"sharing": "memory"}], [card(number, 8) for number in range(4)])
    held = f"{card_key(Uuid('GPU-0'))}-0"
    node.held = {MEM: {"pod": [held]}}
    node.wait()
    reasons = {one.partition("-")[0]: reason for one, reason in node.listed().items() if one != held}
    assert "its former limits (of two sections)" in reasons.pop(card_key(Uuid("GPU-0")))
    assert set(reasons.values()) == {""}, "those that nobody has held for a while"
    node.held = {}
    node.wait()
    assert set(node.listed().values()) == {""}


def test_what_another_plugin_noted_stays_where_it_is(tmp_path: Path) -> None:
    other = a_host(tmp_path, "fuse")
    other.journal.write("card 1", phase="card", data={"slot": 1})
    other.journal.write("link", phase="begun")
    assert not loaded(a_host(tmp_path, "cards", other)).records
    assert keys(other) == ["card 1", "link"]


def test_records_that_cannot_be_written_here_stay_there(tmp_path: Path) -> None:
    one, cards = a_host(tmp_path, "gpu"), a_host(tmp_path, "cards")
    note(one, MEM, "memory")
    cards.journal.folder.touch()  # no folder can be made there
    assert set(loaded(a_host(tmp_path, "cards", one)).records) == {("GPU-0", MEM, "memory")}
    assert len(keys(one)) == 1
