"""A plugin in a process of its own is called like one in a thread."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.contract.hookspecs import ANSWERS, RESERVED

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
CALLED = [hook for hook in ANSWERS if hook not in {*RESERVED, "claims", "prepare", "start", "stop"}]
pytestmark = pytest.mark.unprivileged


@pytest.mark.parametrize("hook", CALLED)
def test_a_process_answers_as_a_thread_does(hook: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(), local=guests.section(isolation="thread", name="other"))
        assert guests.state("guest") == "running"
        if hook in {"inspect", "device_allocate"}:
            return  # they tell who they are
        if hook.startswith("cni") and os.geteuid() != 0:
            pytest.skip("a call of CNI enters a namespace: needs root")
        assert await guests.call(hook) == await guests.call(hook, name="local")

    play(story)
