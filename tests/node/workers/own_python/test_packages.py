"""A plugin whose section names a Python of its own has the packages of that one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import environments
from tests.node.workers.own_python.spoiled import Play, reason

from nodeplug.hosting.supervision import Supervision
from nodeplug.testing import ScratchNode
from nodeplug.worker import spawning

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

WORKERS = Path(__file__).parents[1]
pytestmark = pytest.mark.unprivileged
whole = pytest.mark.whole


def test_a_plugin_is_found_among_the_packages_of_its_own_python_and_has_no_other(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python), other=guests.section(name="b"))
        assert (guests.state(), reason(guests)) == ("running", "")
        assert guests.lifecycle.registry.slots["guest"].instance.distribution == "acme 1.0"
        assert (await guests.call("device_allocate")).env == {"LIBRARY": "1.0"}
        found = await guests.call("inspect")
        assert found["executable"] == python
        assert found["input"] == ""
        assert {"asyncio", "grpc", "google", "pyroute2", "typer", "tomli_w"}.isdisjoint(found["modules"])
        own = {str(Path(python).parents[1]), sys.base_prefix}
        assert [one for one in found["path"] if not any(one.startswith(prefix) for prefix in own)] == []
        assert {"PYTHONPATH", "PYTHONHOME"}.isdisjoint(found["environment"])

    play(story)


@whole
def test_every_hook_works_in_a_python_of_its_own(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section("guest", python=python, name="a"), twin=guests.section(name="b", isolation="process")
        )
        for hook in ("device_list", "device_prefer", "volume_stage", "volume_stats", "metrics", "health"):
            assert await guests.call(hook) == await guests.call(hook, name="twin")

    play(story)


@whole
def test_two_plugins_have_two_versions_of_one_library(
    python: str, acme_wheels: Path, tmp_path: Path, play: Play
) -> None:
    second = environments.make(tmp_path / "second", acme_wheels, "acme==2.0")

    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section("acme", python=python), other=guests.section("acme", python=str(second), name="other")
        )
        assert (await guests.call("device_allocate")).env == {"LIBRARY": "1.0"}
        assert (await guests.call("device_allocate", name="other")).env == {"LIBRARY": "2.0"}

    play(story)


@whole
def test_a_reload_takes_what_has_been_installed_for_its_python(python: str, acme_wheels: Path, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python))
        environments.install(Path(python), acme_wheels, "acme==2.0")
        await Supervision(guests.lifecycle).renew("guest")
        assert guests.lifecycle.registry.slots["guest"].instance.distribution == "acme 2.0"
        assert (await guests.call("device_allocate")).env == {"LIBRARY": "2.0"}

    play(story)


def test_a_plugin_in_a_thread_is_refused_if_its_section_names_a_python(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(python=python, isolation="thread"))
        assert guests.state() == "refused"
        assert "for which `python` cannot be kept" in reason(guests)

    play(story)


def test_the_oldest_python_is_the_one_that_the_distribution_names() -> None:
    text = (environments.ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={spawning.OLDEST}"' in text


@pytest.fixture
def node(python: str, short_path: Path) -> Iterator[ScratchNode]:
    section = f'[plugins.acme]\nisolation = "process"\npython = "{python}"\n'
    (short_path / "node").mkdir()
    one = ScratchNode(short_path / "node", section, env={"PYTHONPATH": str(WORKERS)}, fork=True)
    try:
        yield one
    finally:
        one.kill()


@pytest.mark.whole
def test_plugins_status_and_check_config_show_the_python(node: ScratchNode, python: str) -> None:
    checked = node.run("check-config")
    assert checked.returncode == 0, checked.stderr
    assert f"; {python} runs: acme" in checked.stdout
    (row,) = json.loads(node.run("plugins", "--json").stdout)["plugins"]
    assert (row["python"], row["claims"], row["distribution"]) == (python, ["device:example.com/acme"], "acme 1.0")
    node.start()
    for command in ("plugins", "status"):
        assert python in "".join(node.run(command).stdout.split())
    (row,) = node.status()["plugins"]
    assert (row["python"], row["state"], row["distribution"]) == (python, "running", "acme 1.0")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('python = "python3"', "'python3' is no absolute path; the daemon looks for it nowhere"),
        ("[plugins.acme.config]\nnaem = 'x'", "naem"),
    ],
)
def test_check_config_tells_mistakes_of_a_section_with_a_python(line: str, said: str, node: ScratchNode) -> None:
    text = node.config_path.read_text()
    if line.startswith("python"):
        text = "\n".join(one for one in text.splitlines() if not one.startswith("python"))
    node.config_path.write_text(f"{text}\n{line}\n")
    done = node.run("check-config")
    assert done.returncode == 1
    assert said in done.stderr
