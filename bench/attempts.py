"""One measure after the other, each for itself: a run takes minutes, and one that fails must not lose the others.

Owns: what is told while one runs, the figures of those that succeeded, and why the others have none.
Refuses: to measure.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.figures import Figures


@dataclass(slots=True)
class Attempts:
    """What came of a run so far.

    Attributes:
        tell: is told which measure runs.
        figures: those of every measure that succeeded.
        failed: the others, with the reason.
    """

    tell: Callable[[str], None]
    figures: Figures = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def measuring(self, what: str) -> Iterator[Figures]:
        """Measure one thing; what goes into the figures given counts only if it comes to its end."""
        self.tell(what)
        fresh: Figures = {}
        try:
            yield fresh
        except Exception as error:
            self.failed[what] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            self.figures |= fresh

    def reasons(self) -> str:
        """Return every failed measure with its reason in one line; empty where all succeeded."""
        return "; ".join(f"{what}: {why}" for what, why in self.failed.items())
