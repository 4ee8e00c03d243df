"""Undoing half an ADD.

Owns: the undo steps, run in reverse order if the block fails, each even if another one failed.
Refuses: to hide the original failure.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from nodeplug import Exhausted, PluginError

_FULL: Final = frozenset({errno.EXFULL, errno.ENOSPC, errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.ENOBUFS})
"""EXFULL: a bridge has at most 1023 ports (net/bridge: BR_MAX_PORTS)."""


@dataclass(slots=True)
class Undo:
    """A block that leaves nothing behind if it fails."""

    log: logging.LoggerAdapter[logging.Logger]
    _steps: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def push(self, what: str, step: Callable[[], object]) -> None:
        """Add an undo step; `what` names it in the log."""
        self._steps.append((what, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while error is not None and self._steps:
            what, step = self._steps.pop()
            try:
                step()
            except Exception as failure:
                self.log.warning("cannot %s after a failed ADD: %s; DEL will try again", what, failure)


@dataclass(slots=True)
class Errors:
    """Failures of steps that must not stop each other, as in DEL and GC."""

    _found: list[Exception] = field(default_factory=list)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Run a block and keep its failure."""
        try:
            yield
        except (OSError, PluginError) as error:
            self._found.append(error)

    def raise_all(self) -> None:
        """Raise what was kept: a single failure unchanged, several as one.

        Raises:
            PluginError: with every message.
        """
        if len(self._found) == 1:
            raise self._found[0]
        if self._found:
            raise PluginError("; ".join(str(error) for error in self._found))


@contextmanager
def kernel_errors() -> Iterator[None]:
    """Convert a kernel error into the error of a call.

    Raises:
        Exhausted: something is full, such as a bridge with 1023 ports.
        PluginError: anything else.
    """
    try:
        yield
    except OSError as error:
        text = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        raise (Exhausted if error.errno in _FULL else PluginError)(f"{text}{where}") from error
