"""What is left over by libcni's cache and what is not: nothing is ended on doubt."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.exec_road.test_orphans import CONFIG, Plugin, remove

from nodeplug import PluginError
from nodeplug.testing import ExecRoad
from nodeplug.testing.cni_runtime.cache import Attached, ResultCache

Env = Callable[..., dict[str, str]]
LIST = {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "foreign"}, {"type": "test", "own": 7}]}
RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "198.18.91.2/24"}]}
"""No other test has it in a namespace meanwhile."""


class Place:
    """A road to a plugin, a cache, and namespaces."""

    def __init__(self, road: ExecRoad, folder: Path) -> None:
        self.road, self.folder, self.plugin = road, folder, Plugin()
        road.load("test", self.plugin)
        road.start()
        self.cache = ResultCache("net", folder / "cni")
        caches = [folder / "cni/results", folder / "none"]
        self.reconciliation = road.service.reconciliation(caches, road.bin, 1.0)

    def put(self, netns: str, container: str = "c1", config: Any = LIST, **more: Any) -> Path:
        self.cache.put(Attached(container, "eth0", netns, **{"result": RESULT, "args": "K=V", **more}), config)
        return self.cache.path(container, "eth0")

    def judge(self) -> list[tuple[str, str]]:
        found = [one.encode() for one in self.road.wait_for(self.reconciliation.judge())]
        return [(one["state"], one["why"]) for one in found]

    def look(self) -> list[str]:
        """Reconcile; the containers that the plugin was asked to end."""
        self.road.wait_for(self.reconciliation.look())
        return self.plugin.ended


@pytest.fixture
def place(road: ExecRoad, tmp_path: Path, netns: Path) -> Place:
    """`netns` is a namespace beside those that are gone."""
    return Place(road, tmp_path)


JUDGE = """
import sys
from pathlib import Path
from nodeplug.cni.attachments import Attachments
from nodeplug.cni.reconciliation import judged
for one in judged(Attachments(Path("/none")), [Path(sys.argv[1])], lambda _: True, {}):
    print(one.state, one.why)
"""


@pytest.mark.whole
@pytest.mark.programs("unshare")
def test_where_no_namespace_is_seen_none_is_gone(tmp_path: Path, make_netns: Callable[[str], Path]) -> None:
    """The folder may be another than the runtime's, for a daemon in a container of its own."""
    (tmp_path / "pods").mkdir()
    gone = tmp_path / "pods/gone"
    ResultCache("net", tmp_path / "cni").put(Attached("c1", "eth0", str(gone), RESULT), LIST)
    own = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", JUDGE, str(tmp_path / "cni/results")]

    def judge() -> str:
        return subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()

    assert judge() == f"unknown network namespace {gone} is not seen, but no other one of {gone.parent} either"
    make_netns("pods/lives")
    assert judge() == f"left over network namespace {gone} is gone"


def test_what_is_left_over_gets_the_del_that_its_runtime_would_send(place: Place) -> None:
    gone = place.folder / "gone"
    capable = {**LIST, "plugins": [{"type": "test", "own": 7, "capabilities": {"a": True, "b": False}}]}
    place.put(str(gone), config=capable, capability_args={"a": 1, "b": 2, "c": 3})
    assert place.judge() == [("left over", f"network namespace {gone} is gone")]
    assert place.look() == ["c1"]
    (request,) = place.plugin.deleted
    assert (request.network, request.ifname, request.args, request.netns) == ("net", "eth0", {"K": "V"}, None)
    assert (request.config["own"], request.config["runtimeConfig"]) == (7, {"a": 1})
    assert request.prev_result is not None
    assert place.look() == ["c1"]  # once


def test_a_failing_del_is_tried_again(place: Place) -> None:
    place.put(str(place.folder / "gone"))
    place.plugin.broken = True
    place.look()
    place.plugin.broken = False
    assert place.look() == ["c1", "c1"]
    assert place.look() == ["c1", "c1"]


def test_what_is_attached_and_lost_anew_is_ended_anew(place: Place) -> None:
    place.put(str(place.folder / "gone"))
    place.look()
    os.utime(place.put(str(place.folder / "gone")), (time.time(), time.time() + 1))
    assert place.look() == ["c1", "c1"]


def test_nothing_is_ended_on_doubt(place: Place, make_netns: Callable[[str], Path]) -> None:
    lives = make_netns("lives")
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (str(lives), {}, "held", f"network namespace {lives} exists"),
        ("", {}, "unknown", "libcni's cache does not name its network namespace"),
        ("/no/such/pod", {}, "unknown", "the folder of its network namespace /no/such/pod does not exist here"),
        (f"{place.folder}/gone", {"result": {}}, "unknown", "but it has no address by which its use could be seen"),
        (
            f"{place.folder}/gone",
            {"result": {"cniVersion": "1.0.0", "ips": [{"address": "127.0.0.1/8"}]}},
            "held",
            "has its address",
        ),
    ]
    for netns, more, state, why in cases:
        place.put(netns, **more)
        ((found, said),) = place.judge()
        assert found == state
        assert why in said
        assert place.look() == []


def test_what_was_attached_in_an_earlier_boot_is_left_over_whatever_folders_exist(place: Place) -> None:
    os.utime(place.put("/no/such/pod"), (1.0, 1.0))
    assert place.judge() == [("left over", "network namespace /no/such/pod is of an earlier boot")]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"\xff", b'{"kind": "cniCacheV2"}', b"[" * 100_000],
    ids=["empty", "cut", "list", "bytes", "version", "deep"],
)
def test_what_cannot_be_read_and_what_is_of_others_says_nothing(place: Place, data: bytes) -> None:
    place.put(str(place.folder / "gone")).write_bytes(data)
    place.put(str(place.folder / "gone"), "c2", {**LIST, "plugins": [{"type": "foreign"}]})
    assert place.judge() == []


def test_what_is_recorded_is_the_matter_of_its_record(place: Place, env: Env, netns: Path) -> None:
    place.road.call("test", env("ADD"), CONFIG)
    place.put(str(place.folder / "gone"))
    assert place.judge() == []


def cut_off(place: Place, env: Env, age: float = 3600.0) -> None:
    def fail() -> None:
        raise PluginError("half is made")

    place.plugin.at_add = fail
    place.road.call("test", env("ADD"), CONFIG)
    attachments = place.road.attachments
    (path,) = attachments.folder.iterdir()
    text = path.read_text()
    (begun,) = attachments.begun()
    path.write_text(text.replace(str(begun.time), str(begun.time - age)))


def test_an_add_that_was_cut_off_is_ended_with_its_namespace_if_libcni_does_not_know_it(
    place: Place, env: Env, netns: Path
) -> None:
    cut_off(place, env)
    place.put(str(place.folder / "gone"), "c2", {"plugins": [{"type": "foreign"}]})
    assert place.judge() == [("left over", "its ADD was cut off, and libcni's cache does not know it")]
    assert place.look() == ["c1"]
    (request,) = place.plugin.deleted
    assert request.netns is not None
    assert request.netns.path == str(netns)
    assert place.judge() == []


def test_a_namespace_that_came_to_the_path_of_one_that_was_cut_off_is_another(
    place: Place, env: Env, make_netns: Callable[[str], Path]
) -> None:
    path = make_netns("pod")
    cut_off(place, lambda verb: env(verb, CNI_NETNS=str(path)))
    place.put(str(place.folder / "gone"), "c2", {"plugins": [{"type": "foreign"}]})
    remove(path)
    make_netns("pod")
    place.look()
    assert [request.netns for request in place.plugin.deleted] == [None]


def test_an_add_that_was_cut_off_is_held_on_doubt(place: Place, env: Env) -> None:
    cut_off(place, env, age=0.0)
    assert place.judge()[0][0] == "held"
    for file in place.road.attachments.folder.iterdir():
        file.unlink()
    cut_off(place, env)
    assert place.judge() == [("unknown", "its ADD was cut off, and libcni's cache is empty")]
    place.put("", "c1", {"plugins": [{"type": "foreign"}]})
    assert place.judge() == [("held", "its ADD was cut off, but libcni's cache knows it")]
    assert place.look() == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_container_that_is_attached_anew_meanwhile_is_not_ended(place: Place, env: Env, fails: bool) -> None:
    place.put(str(place.folder / "gone"))
    (verdict,) = place.road.wait_for(place.reconciliation.judge())
    if fails:
        cut_off(place, env, age=0.0)
    else:
        place.road.call("test", env("ADD"), CONFIG)
    place.road.wait_for(place.reconciliation._end(verdict))
    assert place.plugin.ended == []


def test_who_asks_is_told_what_would_end_and_then_what_has_ended(
    place: Place, make_netns: Callable[[str], Path]
) -> None:
    place.put(str(place.folder / "gone"))
    place.put(str(make_netns("lives")), "c2")

    def report(*, dry_run: bool) -> list[tuple[str, str, bool]]:
        found = place.road.wait_for(place.reconciliation.report(dry_run=dry_run))["attachments"]
        assert all(one["types"] == ["foreign", "test"] for one in found)
        return [(one["container_id"], one["state"], one["ended"]) for one in found]

    assert report(dry_run=True) == [("c1", "left over", False), ("c2", "held", False)]
    assert place.plugin.ended == []
    assert report(dry_run=False) == [("c1", "left over", True), ("c2", "held", False)]
    assert place.plugin.ended == ["c1"]
    assert report(dry_run=True) == [("c2", "held", False)]
