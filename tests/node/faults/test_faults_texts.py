"""Texts of plugins and callers that are large, slow, or never come: they stop nobody and are shown in part."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.suites import divided

FEW_KIB = 20_000
PATIENT = {"cni_add": "60s"}


FEW_MB, MANY_MB = 3_000_000, 50_000_000
WAYS = [(isolation, huge) for huge in (FEW_MB, MANY_MB) for isolation in ("thread", "process")]


@pytest.fixture(
    scope="module", params=[pytest.param(way, marks=[pytest.mark.soak] * (way[1] == MANY_MB)) for way in WAYS], ids=str
)
def daemon(make_shared_node: Callable[..., Any], request: pytest.FixtureRequest) -> Iterator[Any]:
    isolation, huge = request.param
    node = make_shared_node(huge=huge, faulty={"deadline": PATIENT, "isolation": isolation}, other={})
    yield node
    node.scratch.stop()


@pytest.fixture
def node(daemon: Any) -> Iterator[Any]:
    """The daemon of this module; after each test it serves."""
    daemon.mark()
    yield daemon
    assert daemon.cni(claim="other").status == 0


@pytest.mark.whole
@pytest.mark.parametrize(
    "fault", divided(["huge", "huge_lines", "huge_refusal", "huge_cause", "huge_log", "deep"], {"huge", "deep"})
)
def test_megabytes_of_text_are_a_few_kilobytes_for_everybody_who_reads_it(node: Any, fault: str) -> None:
    answer = node.cni(do=fault)
    assert answer.status == 1
    assert "begin" in answer.text
    assert len(answer.stdout) < FEW_KIB
    assert len("\n".join(node.fresh)) < 2 * FEW_KIB
    recent = [call for call in node.scratch.status()["recent"] if call["outcome"] != "ok"]
    assert max(len(call["error"]) for call in recent) < FEW_KIB
    if fault.startswith("huge") and fault != "huge_log":
        assert re.search(r"\.\.\.\[\d+ more characters\]", answer.text)
    if fault == "huge_log":
        node.until(lambda: re.search(r"\.\.\.\[\d+ more characters\]", "\n".join(node.fresh)))


@pytest.mark.parametrize("fault", ["slow", "slow_refusal", "slow_log"])
def test_an_exception_whose_text_does_not_come_stops_neither_others_nor_the_log(node: Any, fault: str) -> None:
    key = f"c-{fault}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.cni, container=key, do=fault)
        if fault == "slow_refusal":  # its text is nobody's business: the contract's own is told
            assert "a text of the contract" in waiting.result().text
            return
        node.until((node.notes() / f"held-{key}").exists)
        assert node.cni(claim="other", do="full").code == 11
        assert "no address is left" in "\n".join(node.fresh)
        assert node.scratch.status()["ready"]
        (node.notes() / f"go-{key}").touch()
        waiting.result()
    node.until(lambda: "at last" in "\n".join(node.fresh))


def test_megabytes_of_a_caller_are_shown_in_part(node: Any) -> None:
    answer = node.cni(cniVersion="9" * 3_000_000)
    assert answer.code == 1
    assert "more characters]" in answer.text
    assert len(answer.stdout) < FEW_KIB
    assert len("\n".join(node.fresh)) < FEW_KIB


@pytest.mark.parametrize("huge", divided([FEW_MB, MANY_MB], {FEW_MB}))
def test_a_health_text_of_megabytes_is_shown_in_part(make_node: Callable[..., Any], huge: int) -> None:
    node = make_node(huge=huge, faulty={"health": "huge_refusal"}, other={})
    node.until(lambda: "faulty" in node.scratch.status()["reasons"])
    status = node.scratch.status()
    assert len(str(status)) < 4 * FEW_KIB
    assert "more characters]" in status["reasons"]["faulty"]
    assert node.cni(claim="other").status == 0


@pytest.mark.parametrize("fault", ["raise", "full", "mute", "huge_refusal", "wrong"])
def test_every_cni_error_carries_the_id_under_which_the_log_has_more(node: Any, fault: str) -> None:
    answer = node.cni(do=fault)
    found = re.findall(r"request ([0-9a-f]{8})\b", answer.text)
    assert len(found) == 1, answer
    assert any(found[0] in line for line in node.fresh)
    assert node.scratch.status()["recent"][0]["id"] == found[0]


def test_a_refusal_before_the_plugin_carries_its_id_too(node: Any) -> None:
    for answer in (node.cni(stdin=b"{"), node.cni(CNI_IFNAME=None)):
        found = re.findall(r"request ([0-9a-f]{8})\b", answer.text)
        assert len(found) == 1, answer
        assert any(found[0] in line for line in node.fresh)
