"""What kubelet has of a daemon that starts before most of it has even been imported."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.node.device.test_last_known import SECTION, THING, beside
from tests.suites import divided

from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
HERE: Final = Path(__file__).parent


class Held:
    """A node whose daemon is killed, and then does not get beyond the import of its main module."""

    def __init__(self, root: Path, kubelet: BlockingKubelet) -> None:
        self.kubelet = kubelet
        self.file = root / "held"
        self.reached = root / "reached"
        (root / "devices.json").write_text(json.dumps({THING: ["d0", "d1"]}))
        path = os.pathsep.join([str(HERE / "held"), str(HERE)])
        section = SECTION.format(name="thing", folder=root)
        # The daemon that lists first is forked: only one that is executed imports anything that can be held up.
        self.first = ScratchNode(root, section, env={"PYTHONPATH": str(HERE)}, fork=True)
        self.node = ScratchNode(root, section, env={"PYTHONPATH": path, "HELD": str(self.file)})
        self.note = root / "run" / "nodeplug" / "next-start.json"

    def begin(self) -> None:
        self.first.start()
        self.kubelet.until_allocatable(THING, 2)
        until(self.note.exists)
        until(lambda: list(self.node.root.glob("run/nodeplug/devices/*.json")))

    def crash(self) -> None:
        self.first.kill()
        self.node.kill()
        self.kubelet.until_allocatable(THING, 0)

    def start_held(self) -> None:
        """Start again, up to the import; what is started ends with the test."""
        self.file.touch()
        self.reached.unlink(missing_ok=True)
        beside(self.node.start)
        until(self.reached.exists)


@pytest.fixture
def held(short_path: Path) -> Iterator[Held]:
    with BlockingKubelet(short_path / "var" / "lib" / "kubelet") as kubelet:
        one = Held(short_path, kubelet)
        try:
            yield one
        finally:
            one.first.kill()
            one.node.kill()


def test_kubelet_has_the_last_lists_before_the_daemon_has_been_imported(held: Held) -> None:
    held.begin()
    held.crash()
    held.start_held()
    held.kubelet.until_allocatable(THING, 2)
    admitted = beside(lambda: held.kubelet.admit("pod", {THING: 2})[THING].envs)
    with pytest.raises(TimeoutError):
        admitted.result(0.5)
    held.file.unlink()
    assert admitted.result() == {"MARK_d0": "granted", "MARK_d1": "granted"}
    assert len(held.kubelet.registrations) == 2


def another_comment(held: Held) -> None:
    held.node.config_path.write_text(held.node.config_path.read_text() + "# one more\n")


def another_drop_in(held: Held) -> None:
    folder = held.node.config_path.parent / "plugins.d"
    folder.mkdir()
    (folder / "more.toml").write_text("[plugins.tmpfs]\n")


def another_boot(held: Held) -> None:
    held.note.write_text(json.dumps({**json.loads(held.note.read_text()), "boot_id": "another"}))


def half(held: Held) -> None:
    held.note.write_bytes(held.note.read_bytes()[:40])


def a_fifo(held: Held) -> None:
    held.note.unlink()
    os.mkfifo(held.note)


@pytest.mark.whole
@pytest.mark.parametrize(
    "change",
    divided([another_comment, another_drop_in, another_boot, half, a_fifo], {another_comment, another_boot}),
)
def test_kubelet_hears_nothing_before_a_configuration_that_has_changed_is_read(
    held: Held, change: Callable[[Held], None]
) -> None:
    held.begin()
    held.crash()
    change(held)
    held.start_held()
    assert len(held.kubelet.registrations) == 1
    held.file.unlink()
    held.kubelet.until_allocatable(THING, 2)


@pytest.mark.whole
def test_a_daemon_that_does_not_come_up_offers_its_devices_once(held: Held) -> None:
    held.begin()
    held.crash()
    held.start_held()
    held.kubelet.until_allocatable(THING, 2)
    held.crash()
    held.start_held()
    assert len(held.kubelet.registrations) == 2


def test_a_second_daemon_takes_no_device_from_the_first(held: Held) -> None:
    held.begin()
    done = held.first.run("serve")
    assert done.returncode == 1
    assert "daemon" in done.stderr
    assert len(held.kubelet.registrations) == 1
    assert held.kubelet.allocatable(THING) == 2
    assert held.note.exists()  # for the next start after the first one's crash


def test_what_is_noted_follows_a_reload(held: Held) -> None:
    held.begin()
    before = held.note.read_text()
    held.node.configure(SECTION.format(name="thing", folder=held.node.root) + "[plugins.tmpfs]\n")
    until(lambda: held.note.exists() and held.note.read_text() != before)
    assert json.loads(held.note.read_text())["sections"] == ["thing", "tmpfs"]


@pytest.mark.parametrize("text", ["[plugins.thing", '[supervisor]\nlisten = ""\nlog_level = "error"\n'])
def test_nothing_is_noted_while_the_files_say_something_else_than_what_is_in_force(held: Held, text: str) -> None:
    held.begin()
    held.node.config_path.write_text(f"version = 1\n{text}\n")
    until(lambda: not held.note.exists())


def test_a_note_is_only_for_root(held: Held) -> None:
    held.begin()
    assert held.note.stat().st_mode & 0o777 == 0o600
