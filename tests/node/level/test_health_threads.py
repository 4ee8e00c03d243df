"""Nobody asks a plugin for its health when the namespaces of its test are closed."""

import threading

import pytest
from tests.node.level.health_threads import HealthThreads

pytestmark = pytest.mark.unprivileged


def test_a_request_after_the_end_starts_nothing() -> None:
    asked: list[str] = []
    threads = HealthThreads(lambda: asked.append("health"))
    threads()
    threads.end()
    threads()
    threads.end()
    assert asked == ["health"]


def test_the_end_waits_for_who_still_asks() -> None:
    begun, going, asked = threading.Event(), threading.Event(), threading.Event()

    def ask() -> None:
        begun.set()
        going.wait()
        asked.set()

    threads = HealthThreads(ask)
    threads()
    begun.wait()
    threading.Timer(0.01, going.set).start()
    threads.end()
    assert asked.is_set()
