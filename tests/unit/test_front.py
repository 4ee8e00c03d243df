"""What every front does with every request: it tells its end once, logs a failure once, and gives its error the id."""

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import pytest

from nodeplug.cni import codec
from nodeplug.contract.errors import DelegateFailed, NotSupported, PluginError
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.runner import Runner


@dataclass
class Served:
    """A front, and what became of its requests."""

    front: Front
    ends: list[tuple[Call, PluginError | None]]
    calls: list[Call] = field(default_factory=list)

    def __call__(self, work: Awaitable[Any], **changes: Any) -> Any:
        """Serve one request; return its answer, or its error."""
        self.calls.append(Call(**{"verb": "STATUS", "claim": "cni:net", **changes}))

        async def serve() -> Any:
            return await self.front.serve(self.calls[-1], work)

        try:
            return asyncio.run(serve())
        except PluginError as error:
            return error


@pytest.fixture
def served() -> Served:
    ends: list[tuple[Call, PluginError | None]] = []
    runner = Runner(lambda call, error: ends.append((call, error)))
    return Served(Front(runner, quiet=(NotSupported,), repeated=frozenset({"STATUS"})), ends)


async def fine() -> str:
    return "answer"


async def raising(error: Exception) -> None:
    raise error


def test_an_answer_is_passed_on_and_told_once(served: Served) -> None:
    assert served(fine()) == "answer"
    assert served.ends == [(served.calls[0], None)]


def test_a_failure_is_told_and_logged_once_with_its_id(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    failure = DelegateFailed("no lease", code=123)
    error = served(raising(failure), verb="ADD")
    assert error is failure
    assert error.request == served.calls[0].id
    assert served.ends == [(served.calls[0], error)]
    assert [record.getMessage() for record in caplog.records] == [
        f"ADD of cni:net failed (request {error.request}): no lease"
    ]


def test_an_exception_of_the_daemon_is_an_error_that_names_the_logs_traceback(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    error = served(raising(KeyError("hunter2")))
    assert error.message == "STATUS failed in the daemon: KeyError; its log has the traceback"
    assert error.request in caplog.text
    assert "in raising" in caplog.text


def test_the_text_of_an_exception_of_the_daemon_is_shown_nowhere(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    error = served(raising(ValueError("hunter2")))
    assert "hunter2" not in caplog.text + str(error)


def test_what_a_request_keeps_secret_is_shown_nowhere(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    failure = PluginError("no login with hunter2", details="hunter2 is wrong")
    error = served(raising(failure), mask=lambda text: text.replace("hunter2", "***"))
    assert str(error) == "no login with ***; *** is wrong"
    assert "hunter2" not in caplog.text


def test_a_secret_is_masked_before_a_long_text_is_cut(served: Served) -> None:
    failure = PluginError("a" * 4090 + "hunter2" * 2)
    error = served(raising(failure), mask=lambda text: text.replace("hunter2", "***"))
    assert "hun" not in error.message


def test_a_long_text_is_cut_once_and_says_how_much_is_missing(served: Served) -> None:
    error = served(raising(PluginError("a" * 5000, details="b" * 5000)))
    document = json.loads(codec.encode_error(error))
    assert document["msg"] == "a" * 4096 + " ...[904 more characters]"
    assert document["details"] == "b" * 4096 + f" ...[904 more characters]; request {error.request}"


def test_a_reason_that_a_caller_asks_for_again_and_again_is_logged_once_under_its_first_id(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [served(raising(PluginError("no route"))).request for _ in range(3)]
    assert ids == [served.calls[0].id] * 3
    assert len(caplog.records) == 1
    assert len(served.ends) == 3


def test_the_same_reason_after_an_answer_is_news(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served(raising(PluginError("no route")))
    served(fine())
    assert served(raising(PluginError("no route"))).request == served.calls[2].id
    assert len(caplog.records) == 2


def test_what_is_no_failure_on_the_wire_is_logged_for_debugging_alone(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nodeplug")
    served(raising(NotSupported("no attach")), verb="attach")
    assert [record.levelno for record in caplog.records if record.name.startswith("nodeplug")] == [logging.DEBUG]


def test_a_text_is_masked_beside_the_loop_which_many_secrets_would_hold_up(served: Served) -> None:
    threads: list[bool] = []

    def mask(text: str) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return text.replace("hunter2", "***")

    async def work() -> None:
        raise PluginError("no hunter2", details="nor hunter2")

    error = served(work(), mask=mask)
    assert (error.message, error.details, set(threads)) == ("no ***", "nor ***", {False})
