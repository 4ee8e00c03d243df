"""What goes wrong between kubelet and a volume driver: one JSON object on stdout, status 0, and one line of the log."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def daemon(make_shared_node: Callable[..., Any], entrypoints: str) -> Iterator[Any]:
    shared = make_shared_node(supervisor=entrypoints, drive={"kind": "volume", "deadline": {"volume_stage": "2s"}})
    yield shared
    shared.scratch.stop()


@pytest.fixture
def node(daemon: Any) -> Iterator[Any]:
    """The daemon of this module; it still serves after each test, and nothing is mounted below its root."""
    daemon.mark()
    yield daemon
    assert daemon.flex("init").document["status"] == "Success"
    assert str(daemon.scratch.root) not in Path("/proc/self/mounts").read_text()


def refused(answer: Any, status: str = "Failure") -> Any:
    assert (answer.status, answer.stderr) == (0, b"")
    assert answer.document["status"] == status
    assert answer.text
    return answer


def target(node: Any) -> str:
    path = node.scratch.root / "target"
    path.mkdir(exist_ok=True)
    return str(path)


def options(**own: str) -> str:
    return json.dumps({"kubernetes.io/pvOrVolumeName": "data", "kubernetes.io/readwrite": "rw", **own})


BAD_OPTIONS = {
    "nothing": b"",
    "half an object": b'{"a": ',
    "a list": b"[]",
    "no UTF-8": b'{"a": "\xff"}',
    "deep nesting": b"[" * 100_000,
    "a NUL": b'{"a": "\\u0000"}',
    "an option that is no string": b'{"a": {}}',
    "a secret that is no base64": b'{"kubernetes.io/secret/token": "!!!"}',
}


@pytest.mark.parametrize("text", BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_one_failure_and_one_line_in_the_log(node: Any, text: bytes) -> None:
    refused(node.flex("mount", target(node), text))
    node.failure()


def test_a_call_without_a_verb_is_a_failure(node: Any) -> None:
    refused(node.flex())
    node.failure()


def test_a_call_without_its_arguments_is_a_failure_that_names_them(node: Any) -> None:
    assert "target" in refused(node.flex("mount")).text
    node.failure()


def test_an_unknown_verb_is_not_supported_and_no_warning(node: Any) -> None:
    refused(node.flex("levitate", "x"), "Not supported")
    assert [line for line in node.fresh if " WARNING " in line] == []


def test_a_target_with_a_newline_forges_no_line_of_the_log(node: Any) -> None:
    refused(node.flex("mount", "/tmp/x\n2026-01-01T00:00:00.000Z ERROR forged\n/..", options()))
    assert [line for line in node.fresh if line.startswith("2026-01-01")] == []


def test_a_driver_that_nobody_serves_is_a_failure_that_says_what_is_served(node: Any) -> None:
    folder = node.scratch.paths.flexvolume / "scratch~stray"
    folder.mkdir(exist_ok=True)
    (folder / "stray").write_bytes((node.scratch.paths.flexvolume / "scratch~drive" / "drive").read_bytes())
    (folder / "stray").chmod(0o755)
    assert "served: scratch/drive" in refused(node.flex("mount", target(node), options(), driver="stray")).text
    node.failure()


FAULTS = {
    "raise": "OSError: no such card",
    "exit": "SystemExit",
    "unprintable": "Unprintable",
    "wrong": "returned str from volume_stage",
    "object": "a wrapped error",
    "mute": "no reason was given",
    "full": "254 of 254",
}


@pytest.mark.parametrize(("fault", "text"), FAULTS.items(), ids=FAULTS)
def test_a_plugin_that_fails_is_a_failure_that_says_what_it_did(node: Any, fault: str, text: str) -> None:
    assert text in refused(node.flex("mount", target(node), options(do=fault))).text
    assert sum("failed (request" in line for line in node.fresh) == 1


@pytest.mark.programs("mount")
def test_a_plugin_that_sleeps_past_its_deadline_is_a_failure(node: Any) -> None:
    assert "did not end within 2 s" in refused(node.flex("mount", target(node), options(do="hold"))).text
    (node.notes("drive") / "go").touch()
    node.until(lambda: any("ended after" in line for line in node.fresh))
    node.until(lambda: refused_or_done(node))


def refused_or_done(node: Any) -> bool:
    return bool(node.flex("unmount", target(node)).document["status"] == "Success")


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.whole)])
def test_calls_at_once_are_all_answered_though_there_are_more_than_places(node: Any, count: int) -> None:
    with ThreadPoolExecutor(min(count, 100)) as pool:
        answers = list(pool.map(lambda _: node.flex("getvolumename", options()), range(count)))
    assert {answer.document["status"] for answer in answers} == {"Not supported"}
