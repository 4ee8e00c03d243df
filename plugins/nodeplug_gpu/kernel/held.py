"""Which containers run under a limit of the kernel, or have been started without theirs, and why.

Owns: one file in the plugin's run folder, which ends with the boot, as cgroups do.
Refuses: to be the truth about a cgroup that is gone: its limit went with it, and so does its line here.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from nodeplug_gpu.cards import Uuid

FILE: Final = "kernel-limits.json"


@dataclass(frozen=True, slots=True)
class Held:
    """What was done for one container on one card.

    Attributes:
        container: its id in the runtime.
        card: the card.
        cgroup: the folder of its cgroup.
        size: bytes that it was allocated.
        hard: bytes that the driver confirmed; 0 where there is no limit.
        error: why there is none.
    """

    container: str
    card: Uuid
    cgroup: str
    size: int
    hard: int = 0
    error: str = ""


@dataclass(slots=True)
class HeldLimits:
    """The limits of this boot. Any thread.

    Attributes:
        file: where they are written.
    """

    file: Path
    _known: dict[tuple[str, Uuid], Held] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _starting: set[tuple[str, Uuid]] = field(default_factory=set)
    _started: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def alone(self, container: str, card: Uuid) -> Iterator[Held | None]:
        """Yield what was done for a container on a card; whoever else asks for the same waits until this has ended.

        Another container or card does not wait: a card whose driver hangs costs its own containers alone.
        """
        key = container, card
        with self._started:
            self._started.wait_for(lambda: key not in self._starting)
            self._starting.add(key)
        try:
            with self._lock:
                before = self._known.get(key)
            yield before
        finally:
            with self._started:
                self._starting.discard(key)
                self._started.notify_all()

    def load(self, files: Iterable[Path]) -> None:
        """Read what predecessors have written, of sections of other names, too; what cannot be read is left out."""
        with self._lock:
            for file in files:
                try:
                    found = [Held(**one) for one in json.loads(file.read_bytes())]
                except (OSError, ValueError, TypeError):
                    continue
                self._known.update({(one.container, one.card): one for one in found})

    def put(self, one: Held) -> None:
        """Note what was done for a container.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            self._known[one.container, one.card] = one
            self._write()

    def prune(self) -> None:
        """Forget containers whose cgroups are gone."""
        with self._lock:
            gone = [key for key, one in self._known.items() if not Path(one.cgroup).is_dir()]
            for key in gone:
                del self._known[key]
            if gone:
                self._write()

    def of(self, card: Uuid) -> list[Held]:
        """Return what was done on a card; the latest of each container last."""
        with self._lock:
            return [one for one in self._known.values() if one.card == card]

    def _write(self) -> None:
        temporary = self.file.with_name(f".{self.file.name}.{os.getpid()}")
        temporary.write_text(json.dumps([asdict(one) for one in self._known.values()]), encoding="utf-8")
        temporary.rename(self.file)
