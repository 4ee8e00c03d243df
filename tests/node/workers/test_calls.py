"""A plugin in a process of its own is called like one in a thread."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import nodeplug as n
from nodeplug.contract.hookspecs import ANSWERS, RESERVED
from nodeplug.hosting.call import Call
from nodeplug.hosting.composition import Composition
from nodeplug.worker.wire import Channel, Message

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


def test_a_hook_about_a_volume_wakes_its_process_before_the_loop_sends_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, ahead = Channel.send_at_once, list[int]()

    def sends(channel: Channel, message: Message) -> bool:
        ahead.append(channel._ahead)
        return send(channel, message)

    monkeypatch.setattr(Channel, "send_at_once", sends)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        lifecycle = guests.lifecycle
        request = n.VolumeStatsRequest(driver="example/thing", volume_id=n.VolumeId("v"), mount_path="/t")
        route = lifecycle.registry.route("volume", "example/thing")
        await guests.call("volume_stats")  # no channel was open yet
        ahead.clear()
        composition = Composition(lifecycle.runner, route, Call("mount", "volume:example/thing", "k", whole=True))
        await composition.run(lambda steps: [steps.hook("volume_stats", request=request) for _ in range(3)])
        assert ahead == [4, 4, 4]

    play(story)


def test_a_hook_with_something_around_it_wakes_its_process_before_the_thread_sends_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, ahead = Channel.send, list[int]()

    def sends(channel: Channel, message: Message, *, first: bool = False) -> None:
        if message.op == "hook":
            ahead.append(channel._ahead)
        send(channel, message, first=first)

    monkeypatch.setattr(Channel, "send", sends)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section())
        runner, route = guests.lifecycle.runner, guests.lifecycle.registry.route("volume", "example/thing")
        request = n.VolumeStatsRequest(driver="example/thing", volume_id=n.VolumeId("v"), mount_path="/t")
        await guests.call("volume_stats")  # no channel was open yet
        call = Call("volume_stats", "volume:example/thing", "k")
        await runner.call(route, "volume_stats", call, {"request": request}, around=lambda hook: hook)
        assert ahead[-1:] == [4]

    play(story)
