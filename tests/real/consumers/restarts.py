"""A daemon that ends and comes back again and again while others work with it.

Owns: when and how it ends: SIGKILL and SIGTERM in turn, at times that a seed decides, yet first while each kind of work
is under way; which work was under way then.
Refuses: judgement of what the others get meanwhile.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from nodeplug.testing.scratch_node import ScratchNode

_UP: Final = (0.02, 0.5)
_AWAY: Final = (0.0, 0.3)
_AIMING: Final = 10.0
"""Seconds that an end waits at most for work that such an end has not met yet."""


class Restarts:
    """Restarts from the beginning of the block to its end, where the daemon runs.

    Args:
        daemon: started.
        seed: of the times; the order in which the others work stays the scheduler's.
    """

    def __init__(self, daemon: ScratchNode, seed: int = 1) -> None:
        self._daemon, self._chance = daemon, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._torment)
        self._under_way: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self.hit: Counter[tuple[str, str]] = Counter()
        """How often which work was under way at a SIGKILL or SIGTERM, by work and signal."""

    @contextmanager
    def during(self, work: str) -> Iterator[None]:
        """Name what the calling thread does in this block."""
        with self._changed:
            self._under_way[work] += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._under_way[work] -= 1

    def hit_all(self, *works: str) -> bool:
        """Whether each of these was under way at a SIGKILL and at a SIGTERM at least once."""
        return all(self.hit[work, signal] for work in works for signal in ("SIGKILL", "SIGTERM"))

    def _torment(self) -> None:
        try:
            for number in range(1_000_000):
                if self._over.wait(self._chance.uniform(*_UP)):
                    return
                signal, end = (("SIGKILL", self._daemon.kill), ("SIGTERM", self._daemon.stop))[number % 2]
                with self._changed:
                    self._changed.wait_for(lambda: self._is_time(signal), _AIMING)  # noqa: B023 - called here alone
                    self.hit.update((work, signal) for work, count in self._under_way.items() if count)
                end()
                self._over.wait(self._chance.uniform(*_AWAY))
                self._daemon.start()
        except BaseException as error:  # raised again where the block ends
            self._failure = error

    def _is_time(self, signal: str) -> bool:
        """Whether work is under way that this signal has not met, or there is none that it has not met."""
        unmet = [count for work, count in self._under_way.items() if not self.hit[work, signal]]
        return self._over.is_set() or not unmet or any(unmet)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the restarts.

        Raises:
            NotReady: the daemon did not come back once.
        """
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
