"""What plugins tell about themselves: `inspect`, metrics, and who holds their devices."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.started import until_all_run

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged

PLUGIN = """
from nodeplug import Device, DeviceClaim, Metric, NotReady, Sample, hookimpl
from pydantic import BaseModel

class Plugin:
    class Config(BaseModel, extra="forbid"):
        tells: str = "well"

    def __init__(self, config, host):
        self.tells, self.host = config.tells, host

    @hookimpl
    def claims(self):
        return [DeviceClaim(f"example.com/{self.host.plugin}")]

    @hookimpl
    def device_list(self):
        return [Device("d0")]

    @hookimpl
    def inspect(self):
        if self.tells == "nothing that is JSON":
            return {"card": object()}
        if self.tells == "an error":
            raise NotReady("the card is being reset")
        if self.tells == "holders":
            return {"holders": [str(one) for one in self.host.holders("example.com/one")]}
        return {"cards": [1, 2]}

    @hookimpl
    def metrics(self):
        return [Metric("cards", "Cards.", [Sample(2.0, {"model": "x"})])]
"""


def section(name: str, tells: str = "well", isolation: str = "process") -> str:
    return f'[plugins.{name}]\nuses = "telling:Plugin"\nisolation = "{isolation}"\nconfig.tells = "{tells}"\n'


@pytest.fixture
def node(short_path: Path, tmp_path: Path) -> Iterator[Callable[..., ScratchNode]]:
    (tmp_path / "telling.py").write_text(PLUGIN)
    nodes: list[ScratchNode] = []

    def start(plugins: str, supervisor: str = 'listen = ""') -> ScratchNode:
        nodes.append(
            ScratchNode(short_path, plugins, supervisor=supervisor, env={"PYTHONPATH": str(tmp_path)}, fork=True)
        )
        nodes[-1].start()
        until_all_run(nodes[-1])
        return nodes[-1]

    yield start
    for one in nodes:
        one.stop()


def test_a_section_is_inspected_by_its_name(node: Callable[..., ScratchNode]) -> None:
    ended = node(section("one") + section("two")).run("inspect", "two")
    assert json.loads(ended.stdout) == {"two": {"cards": [1, 2]}}


def test_every_section_is_inspected_that_uses_the_plugin(node: Callable[..., ScratchNode]) -> None:
    ended = node(section("one") + section("two")).run("inspect", "telling:Plugin")
    assert list(json.loads(ended.stdout)) == ["one", "two"]


def test_a_name_that_nobody_has_is_told_with_those_that_exist(node: Callable[..., ScratchNode]) -> None:
    ended = node(section("one")).run("inspect", "gpu")
    assert ended.returncode == 1
    assert "no plugin 'gpu' is enabled" in ended.stderr
    assert ended.stderr.rstrip().endswith("one")


@pytest.mark.parametrize(
    ("isolation", "tells", "said"),
    [
        ("thread", "nothing that is JSON", "is not JSON"),
        ("process", "nothing that is JSON", "what inspect returned cannot cross to another process"),
        ("thread", "an error", "the card is being reset"),
        ("process", "an error", "the card is being reset"),
    ],
)
def test_an_inspection_that_fails_is_told_in_a_sentence(
    node: Callable[..., ScratchNode], isolation: str, tells: str, said: str
) -> None:
    ended = node(section("one", tells, isolation)).run("inspect", "one")
    assert ended.returncode == 1
    assert said in ended.stderr


def test_holders_are_unknown_while_kubelet_does_not_tell(node: Callable[..., ScratchNode]) -> None:
    ended = node(section("one", "holders")).run("inspect", "one")
    assert ended.returncode == 1
    assert "who holds example.com/one is unknown at present" in ended.stderr


def test_metrics_of_a_plugin_are_on_the_page_of_the_daemon(node: Callable[..., ScratchNode], free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    node(section("one"), f'listen = "{address}"')
    wanted = 'nodeplug_cards{model="x",plugin="one"} 2.0'

    def page() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    until(lambda: wanted in page(), found=page)
