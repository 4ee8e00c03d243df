"""The daemon ends inside a call of kubelet's: the call is repeated, and in the end nothing is left."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Pod
from nodeplug.testing import CsiCaller, CsiFailure, CsiVolume
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
GUESTS = Path(__file__).parent / "guests"
PLUGIN = """
[plugins.slow]
uses = "slow:Slow"
isolation = "{}"
config = {{ folder = "{}", names = {}, csi_name = "{}" }}
"""
POD, VOLUME = Pod(name="web", uid="uid-1"), CsiVolume("pv-1", {"name": "one"}, handle="one")


@pytest.fixture(params=["thread", "process"])
def slow(request: pytest.FixtureRequest, start_kubelet: Callable[..., Any], tmp_path: Path) -> Any:
    plugin = PLUGIN.format(request.param, tmp_path, ["acme/slow"], "")
    return start_kubelet(plugin, env={"PYTHONPATH": str(GUESTS)})


@contextmanager
def publishing(kubelet: Any, folder: Path) -> Iterator[tuple[CsiCaller, Callable[[], str]]]:
    """Have a volume published, whose plugin stays in stage; what is yielded waits for the code of the answer."""
    (folder / "hold").touch()
    caller = CsiCaller(kubelet.root, "slow.acme")
    caller.register()

    def publish() -> str:
        try:
            caller.mount(POD, VOLUME)
        except CsiFailure as error:
            return error.code
        return "OK"

    with ThreadPoolExecutor(1) as beside:
        answer = beside.submit(publish)
        until((folder / "inside").exists)
        yield caller, answer.result


def ends_well(kubelet: Any, caller: CsiCaller) -> None:
    """Start the next daemon, and let kubelet go on where it was."""
    kubelet.node.start()
    target = caller.mount_until(POD, VOLUME, 8)
    (target / "word").write_text("written")
    caller.unmount(POD, VOLUME.name)
    assert (kubelet.mounted(), kubelet.node.status()["volumes"], target.parent.exists()) == ([], [], False)


def test_a_call_in_which_the_daemon_is_killed_is_uncertain_and_succeeds_when_it_is_repeated(
    slow: Any, tmp_path: Path
) -> None:
    with publishing(slow, tmp_path) as (caller, answer):
        slow.node.kill()
        assert answer() == "UNAVAILABLE"
    assert caller.uncertain == {caller.target(POD, VOLUME.name)}
    (tmp_path / "hold").unlink()
    ends_well(slow, caller)


def test_a_call_in_which_the_daemon_is_killed_can_be_undone_instead(slow: Any, tmp_path: Path) -> None:
    """A pod that was deleted meanwhile: kubelet unpublishes what may be there."""
    with publishing(slow, tmp_path) as (caller, answer):
        slow.node.kill()
        answer()
    (tmp_path / "hold").unlink()
    slow.node.start()
    caller.unmount_until(POD, VOLUME.name, 8)
    assert (slow.mounted(), slow.node.status()["volumes"]) == ([], [])


def test_a_call_in_which_the_daemon_is_told_to_end_is_left_to_the_next_one(slow: Any, tmp_path: Path) -> None:
    with publishing(slow, tmp_path) as (caller, answer):
        os.kill(slow.node.pid, signal.SIGTERM)
        until(lambda: slow.node.status()["plugins"] == [] or not slow.node.running)
        (tmp_path / "hold").unlink()
        assert answer() == "UNAVAILABLE"
        until(lambda: not slow.node.running)
        slow.node.kill()
    ends_well(slow, caller)


def test_of_two_claims_with_one_driver_name_the_first_is_served_and_the_other_says_why(
    start_kubelet: Callable[..., Any], tmp_path: Path
) -> None:
    both = PLUGIN.format("thread", tmp_path, ["acme/slow", "acme/slower"], "same.acme")
    kubelet = start_kubelet(both, env={"PYTHONPATH": str(GUESTS)})
    until(lambda: len(kubelet.node.status()["csi"]) == 2)
    rows = {row["claim"]: (row["driver"], row["problem"]) for row in kubelet.node.status()["csi"]}
    assert rows["acme/slow"][0] == "same.acme"
    assert rows["acme/slower"] == ("", "its CSI driver would be 'same.acme', as that of 'acme/slow'")
    caller = CsiCaller(kubelet.root, "same.acme")
    assert caller.mount(POD, VOLUME).is_dir()
    caller.unmount(POD, VOLUME.name)
