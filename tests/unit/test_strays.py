"""Exceptions of plugins that are not a PluginError: the traceback is told, and not for ever."""

import logging

import pytest

from nodeplug.hosting.call import Call
from nodeplug.hosting.strays import Strays


def raised(text: str) -> BaseException:
    try:
        raise OSError(text)
    except OSError as error:
        return error


def tracebacks(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.exc_info is not None for record in caplog.records)


def test_a_fault_that_a_timer_meets_again_and_again_is_traced_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    strays = Strays()
    calls = [Call("ListDevices", "device:example.com/a") for _ in range(3)]
    told = [strays.told("a", "device_list", call, raised(f"no card {call.id}")) for call in calls]
    assert tracebacks(caplog) == 1
    assert f"(request {calls[0].id}; the daemon's log has the traceback)" in told[0].message
    assert f"(request {calls[2].id}; the daemon's log has the traceback at request {calls[0].id})" in told[2].message


def test_another_fault_of_the_same_hook_is_traced_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    strays = Strays()
    for error in (raised("no card"), ValueError("no number"), raised("no card")):
        strays.told("a", "device_list", Call("ListDevices", "device:example.com/a"), error)
    assert tracebacks(caplog) == 3


def test_the_same_fault_of_another_plugin_is_traced_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    strays = Strays()
    for plugin in ("a", "b"):
        strays.told(plugin, "health", Call("health", f"plugin:{plugin}"), raised("no card"))
    assert tracebacks(caplog) == 2


def test_every_request_of_a_caller_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    strays = Strays()
    for _ in range(2):
        strays.told("a", "cni_add", Call("ADD", "cni:a"), raised("no card"))
    assert tracebacks(caplog) == 2


def test_what_a_request_hides_stands_neither_in_its_error_nor_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    error = raised("mount -o password=hunter2")
    error.__cause__ = ValueError("hunter2 is wrong")
    call = Call("mount", "volume:acme/disk", mask=lambda text: text.replace("hunter2", "***"))
    told = Strays().told("disk", "volume_publish", call, error)
    assert "password=***" in told.message
    assert "password=***" in caplog.text
    assert tracebacks(caplog) == 1
    assert "hunter2" not in caplog.text + told.message
