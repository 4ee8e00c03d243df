"""Deferred DELs that cannot be done, and calls with odd names: nothing is lost in silence, or repeated for ever."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.mounts import bind, unmount

Make = Callable[..., Any]


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(3 << 30)


ODD: dict[str, Callable[[Path], object]] = {
    "a sparse file of 3 GiB": _sparse,
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "no frame": lambda path: path.write_text("junk"),
}


QUICK = frozenset({"a directory", "no frame"})


@pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=[pytest.mark.whole] * (name not in QUICK)) for name, make in ODD.items()]
)
def test_what_is_no_del_is_set_aside_once_and_said(make_node: Make, make: Callable[[Path], object]) -> None:
    node = make_node()
    spool = node.scratch.paths.spool
    node.scratch.stop()
    assert node.cni("DEL").status == 0
    make(spool / "0.frame")
    node.start()
    node.until(lambda: "deferred DELs" in node.scratch.status()["reasons"])
    assert str(spool / "0.damaged") in node.scratch.status()["reasons"]["deferred DELs"]
    assert node.scratch.status()["spool"] == 0  # the other one was replayed
    assert node.cni().status == 0
    assert node.scratch.log.count("is set aside") == 1
    damaged = spool / "0.damaged"
    damaged.rmdir() if damaged.is_dir() else damaged.unlink()
    node.until(lambda: node.scratch.status()["ready"])


def test_a_frame_that_can_neither_be_read_nor_set_aside_is_said_once(make_node: Make) -> None:
    node = make_node(run=False)
    spool = node.scratch.paths.spool
    (spool / "0.frame").mkdir(parents=True)
    bind(str(spool), str(spool), read_only=True)
    try:
        node.start()
        node.until(lambda: "deferred DELs" in node.scratch.status()["reasons"])
        for number in range(3):
            assert node.cni(container=f"c{number}").status == 0  # each looks into the spool
        assert node.scratch.log.count("is set aside") == 1
    finally:
        unmount(str(spool))


def test_a_journal_record_of_3_gib_does_not_stop_the_start(make_node: Make) -> None:
    node = make_node(run=False)
    for folder in ("flexvolume", "faulty"):
        (node.scratch.paths.journal / folder).mkdir(parents=True)
        _sparse(node.scratch.paths.journal / folder / "big.json")
    _sparse(node.scratch.paths.state / "holders.json")
    node.scratch.paths.attachments.mkdir(parents=True)
    _sparse(node.scratch.paths.attachments / "big.json")
    node.start()
    assert node.cni().status == 0
    assert node.attachments() == {"c1"}
    assert node.proc("VmHWM") < 1 << 20


# --- a plugin that is gone ----------------------------------------------------------------------------------------


@pytest.fixture
def stranded(make_node: Make) -> Any:
    """A node that was started without the plugin of a DEL that came while it was away."""
    node = make_node(faulty={}, other={})
    assert node.cni().status == 0
    node.scratch.stop()
    assert node.cni("DEL").status == 0
    node.configure(other={})
    return node


def test_a_del_for_a_plugin_that_is_gone_waits_and_is_shown(stranded: Any) -> None:
    stranded.scratch.start()
    stranded.until(lambda: bool(stranded.scratch.status()["stranded"]))
    (waiting,) = stranded.scratch.status()["stranded"]
    assert (waiting["container_id"], waiting["claim"]) == ("c1", "faulty")
    stranded.until(lambda: "no enabled plugin serves" in stranded.scratch.status()["stranded"][0]["reason"])
    assert "1 of them wait for 'faulty', which no enabled plugin serves" in stranded.scratch.run("status").stdout
    assert stranded.scratch.status()["ready"]


def test_it_is_done_when_the_plugin_returns(stranded: Any) -> None:
    stranded.scratch.start()
    stranded.configure(faulty={}, other={})
    stranded.until(lambda: stranded.scratch.status()["spool"] == 0, 60)
    assert (stranded.notes() / "deleted").read_text() == "c1 done\n"


@pytest.mark.whole  # half a minute goes by
def test_it_is_dropped_after_the_node_was_started_anew(stranded: Any) -> None:
    state = stranded.scratch.paths.state
    (state / "spool.boot").write_text("another boot")
    stranded.scratch.start()
    stranded.until(lambda: stranded.scratch.status()["spool"] == 0, 90)
    assert sum("dropped the DEL of net/c1/eth0" in line for line in stranded.scratch.log.splitlines()) == 1
    assert list(stranded.scratch.paths.spool.iterdir()) == []


def test_a_del_of_an_earlier_boot_is_done_when_its_plugin_is_there(make_node: Make) -> None:
    node = make_node()
    assert node.cni().status == 0
    node.scratch.stop()
    assert node.cni("DEL").status == 0
    (node.scratch.paths.state / "spool.boot").write_text("another boot")
    node.start()
    node.until(lambda: node.scratch.status()["spool"] == 0)
    assert (node.notes() / "deleted").read_text() == "c1 done\n"


# --- names that nothing can have ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "complaint"),
    [("CNI_IFNAME", "interface name is not UTF-8"), ("CNI_CONTAINERID", "invalid characters in containerID")],
)
def test_a_del_of_a_name_that_is_no_text_succeeds(make_node: Make, variable: str, complaint: str) -> None:
    node = make_node()
    odd = {variable: os.fsdecode(b"eth\xff")}
    answer = node.cni("ADD", **odd)
    assert (answer.code, complaint in answer.text) == (4, True)
    assert node.cni("DEL", **odd).status == 0
    node.scratch.stop()
    assert node.cni("DEL", **odd).status == 0
    node.start()
    node.until(lambda: node.scratch.status()["spool"] == 0)
    assert node.scratch.status()["ready"]


def test_a_del_with_arguments_that_add_refused_succeeds(make_node: Make) -> None:
    node = make_node()
    node.cni("ADD", CNI_ARGS="A=B;")
    assert node.cni("DEL", CNI_ARGS="A=B;").status == 0


@pytest.mark.parametrize("size", [1, 200])
def test_what_add_accepted_is_deleted_whatever_the_length_of_its_container_id(make_node: Make, size: int) -> None:
    node = make_node()
    assert node.cni(container="c" * size).status == 0
    assert node.cni("DEL", container="c" * size).status == 0
    assert node.attachments() == set()
    assert list((node.scratch.paths.journal / "faulty").glob("*.json")) == []


@pytest.mark.parametrize("size", [201, 5000, 100_000])
def test_what_add_refuses_for_the_length_of_its_container_id_is_no_failure_of_del(make_node: Make, size: int) -> None:
    node = make_node()
    answer = node.cni(container="c" * size)
    assert (answer.status, answer.code) == (1, 4)
    assert node.cni("DEL", container="c" * size).status == 0
    assert node.attachments() == set()
