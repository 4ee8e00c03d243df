"""A plugin's process that has more than its section allows is ended alone, and says why."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.started import until_all_run

import nodeplug as n
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until
from nodeplug.worker.memory import Memory

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
LIMIT = 96 << 20


@pytest.mark.unprivileged
def test_a_process_that_has_more_memory_than_it_may_is_started_again_and_no_other_notices(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        once = str(guests.folder / "once")
        await guests.apply(
            guest=guests.section(memory=LIMIT, at="device_list", how="leaks", once=once),
            other=guests.section(name="b", memory=LIMIT),
        )
        first, other = guests.pid(), guests.pid("other")
        with suppress(n.TryAgain):  # it may have leaked before anybody looked
            await guests.call("device_list")
        restarts = guests.lifecycle.registry.slots["guest"].restarts
        await guests.until(lambda: restarts.count == 1 and guests.state() == "running" and guests.pid() != first)
        found = re.fullmatch("it used ([0-9]+) MiB and may use 96 MiB", restarts.why)
        assert found is not None, restarts.why
        assert int(found[1]) >= 96
        await guests.call("device_list")
        assert guests.pid("other") == other

    play(story)


@pytest.mark.unprivileged
def test_address_space_that_is_reserved_and_not_used_does_not_count(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(memory=LIMIT, at="device_list", how="reserves"))
        await guests.call("device_list")
        assert Memory(LIMIT).excess(guests.pid()) == ""
        assert guests.lifecycle.registry.slots["guest"].restarts.count == 0

    play(story)


@pytest.mark.unprivileged
def test_a_process_that_is_too_large_from_the_beginning_says_so_and_is_tried_again(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(memory=1 << 20))
        slot = guests.lifecycle.registry.slots["guest"]
        await guests.until(lambda: slot.state == "failed")
        assert "MiB and may use 1 MiB" in slot.reason

    play(story)


@pytest.mark.unprivileged
def test_a_plugin_that_runs_as_a_thread_is_refused_if_its_section_limits_it(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(isolation="thread", memory=LIMIT))
        assert guests.state() == "refused"
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert '`memory` cannot be kept; set `isolation = "process"`, or remove the key' in reason

    play(story)


def leaking(folder: Path, memory: str) -> ScratchNode:
    """Return a daemon with a plugin in a thread that takes 256 MiB within some seconds."""
    section = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "thread"\n'
    leak = '[plugins.guest.config]\nat = "inspect"\nhow = "leaks"\n'
    supervisor = f'listen = ""\nmemory = "{memory}"\n'
    env = {"PYTHONPATH": str(Path(__file__).parent)}
    return ScratchNode(folder, section + leak, supervisor=supervisor, env=env, fork=True)


def test_a_daemon_that_has_more_memory_than_it_may_ends_in_order(short_path: Path) -> None:
    node = leaking(short_path, "250Mi")
    try:
        node.start()
        until_all_run(node)
        node.run("inspect", "guest")
        until(lambda: not node.running)
        assert "MiB and may use 250 MiB" in node.log
        assert "plugin guest is unloaded" in node.log
    finally:
        node.kill()


def test_a_daemon_whose_memory_grows_while_it_ends_is_killed(short_path: Path) -> None:
    node = leaking(short_path, "120Mi")
    try:
        node.start()
        until_all_run(node)
        node.run("inspect", "guest")
        until(lambda: not node.running)
        assert "MiB and may use 120 MiB" in node.log
        assert "the daemon ends at once, to be started again: it used" in node.log
        assert "plugin guest is unloaded" not in node.log
    finally:
        node.kill()
