"""Where a plugin runs: the section decides, then its class; without a word it has a process of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
pytestmark = pytest.mark.unprivileged


@pytest.mark.parametrize(
    ("uses", "asked", "where"),
    [
        ("worker_guest:Guest", None, "process"),
        ("worker_guest:Guest", "thread", "thread"),
        ("worker_guest:Confident", None, "thread"),
        ("worker_guest:Confident", "process", "process"),
        ("tmpfs", None, "thread"),
        ("tmpfs", "process", "process"),
    ],
)
def test_the_section_decides_then_the_class_and_then_it_is_a_process(
    uses: str, asked: str | None, where: str, play: Play
) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(uses=uses, isolation=asked))
        instance = guests.lifecycle.registry.slots["guest"].instance
        assert (guests.state(), instance.isolation) == ("running", where)
        assert (instance.worker is None) == (where == "thread")

    play(story)


@pytest.mark.parametrize("asked", ["thread", "process"])
def test_a_plugin_moves_to_where_its_section_says_and_serves_there(asked: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(isolation=None))
        await guests.apply(guest=guests.section(isolation=asked))
        assert guests.lifecycle.registry.slots["guest"].instance.isolation == asked
        await guests.call("device_list")

    play(story)


def test_a_class_that_asks_for_something_else_is_refused(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(uses="worker_guest:Odd", isolation=None))
        assert guests.state() == "refused"
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert reason.startswith("plugin class Odd of module worker_guest asks for isolation 'container'; there are")

    play(story)
