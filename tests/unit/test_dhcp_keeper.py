"""The thread that keeps leases, without any lease."""

import logging
import os
from typing import Any

import pytest

from nodeplug_net.dhcp.keeper import Keeper


class NoLeases:
    def all(self) -> list[Any]:
        return []


@pytest.fixture
def keeper() -> Keeper:
    leases: Any = NoLeases()
    made = Keeper(leases, logging.LoggerAdapter(logging.getLogger("test")), 8.0)
    made.start()
    return made


def test_a_thread_that_ends_before_it_is_woken_is_not_woken(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = keeper._thread
    assert thread is not None
    was_alive = thread.is_alive

    def ends_now() -> bool:
        alive = was_alive()
        os.eventfd_write(keeper._alarm, 1)
        thread.join()
        return alive

    monkeypatch.setattr(thread, "is_alive", ends_now)
    keeper.stop()
    monkeypatch.undo()
    assert not keeper.is_alive


def test_a_keeper_that_has_ended_can_be_woken_and_ended(keeper: Keeper) -> None:
    keeper.stop()
    keeper.wake()
    keeper.stop()
    assert not keeper.is_alive
