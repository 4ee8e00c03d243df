"""Random delays, as on a machine that has too much to do.

A thread begins late, a program starts late, an event loop takes its next turn late, a test goes on late after a wait,
and a network namespace that a test closes ends late. `tests/delays/__main__.py` lets every Python execute this file as
it starts, so it imports little, and changes other modules only after their import.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_CHANCE = 0.2
_OF_A_TURN = 0.01
"""An event loop takes many turns for one request."""
_LATE, _TURN, _AFTER_A_WAIT, _NAMESPACE = 0.2, 0.1, 0.4, 2.0
"""Seconds at most. Tests wait several times as long for what they wait for."""

_sleep = time.sleep  # a test may replace the module's


def _random() -> float:
    """Return a number from 0 to 1. The module `random` would load OpenSSL into every process."""
    return int.from_bytes(os.urandom(2), "big") / 0x1_0000


def _delay(seconds: float, chance: float = _CHANCE) -> None:
    if _random() < chance:
        _sleep(_random() * seconds)


def _around(owner: object, name: str, before: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Let a function do something before and after."""
    wrapped = getattr(owner, name)

    def delayed(*arguments: object, **named: object) -> object:
        before()
        result = wrapped(*arguments, **named)
        after()
        return result

    setattr(owner, name, delayed)


def _programs(module: ModuleType) -> None:
    _around(module.Popen, "_execute_child", lambda: _delay(_LATE), lambda: _delay(_LATE))


def _turns(module: ModuleType) -> None:
    _around(module.BaseEventLoop, "_run_once", lambda: _delay(_TURN, _OF_A_TURN))


def _after_a_wait(module: ModuleType) -> None:
    _around(module, "until", lambda: None, lambda: _delay(_AFTER_A_WAIT))


def _after_a_wait_for_kubelet(module: ModuleType) -> None:
    import asyncio  # noqa: PLC0415 - see above; this module has imported it

    wait = module.Kubelet.until

    async def until(*arguments: object, **named: object) -> None:
        await wait(*arguments, **named)
        if _random() < _CHANCE:
            await asyncio.sleep(_random() * _AFTER_A_WAIT)

    module.Kubelet.until = until


def _namespaces(module: ModuleType) -> None:
    """Let the kit's sandboxes end late, as the kernel does: it removes the links of a namespace some time later."""
    close = module.Sandbox.close

    def late(sandbox: object) -> None:
        if _random() < _CHANCE:
            held = os.dup(sandbox.netns.fd)  # type: ignore[attr-defined]
            threading.Timer(_random() * _NAMESPACE, os.close, [held]).start()
        close(sandbox)

    module.Sandbox.close = late


class _AfterImport(PathFinder):
    """Changes modules after their import."""

    changes: Mapping[str, Callable[[ModuleType], None]] = {
        "subprocess": _programs,
        "asyncio.base_events": _turns,
        "nodeplug.testing.sandbox": _namespaces,
        "nodeplug.testing.waiting": _after_a_wait,
        "nodeplug.testing.kubelet.stand_in": _after_a_wait_for_kubelet,
    }

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module that is changed; None for all other modules."""
        spec = super().find_spec(fullname, path, target) if fullname in cls.changes else None
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                cls.changes[fullname](module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_around(threading.Thread, "run", lambda: _delay(_LATE))
sys.meta_path.insert(0, _AfterImport)
