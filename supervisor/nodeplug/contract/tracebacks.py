"""A traceback in text, however many frames it has and however long the texts of its exceptions are.

Owns: what is shown of it, to the log of the daemon and from a plugin's process to the daemon.
Refuses: to hide anything: where secrets are about, the caller gives another exception.
"""

import traceback
from collections import deque
from types import TracebackType
from typing import Final

from nodeplug.contract.errors import SHOWN, clip

TRACE: Final = 4 * SHOWN
"""Characters of a traceback."""
_FIRST: Final = 20
_LAST: Final = 60
"""Parts of a traceback that are kept: frames and exception texts."""


def traced(error: BaseException, kind: type[BaseException] | None = None, place: TracebackType | None = None) -> str:
    """Format an exception; of a long traceback the beginning and, mainly, the end.

    Args:
        error: the exception.
        kind: its class, where it is told as another one.
        place: where it was raised, if that is not its own traceback.
    """
    head: list[str] = []
    tail: deque[str] = deque(maxlen=_LAST)
    whole = traceback.TracebackException(kind or type(error), error, place or error.__traceback__, compact=True)
    for piece in whole.format():
        (head if len(head) < _FIRST else tail).append(clip(piece))
    text = "".join([*head, *tail])
    if len(text) <= TRACE:
        return text
    return f"{text[: TRACE // 4]}\n  ...[{len(text) - TRACE} more characters]\n{text[-TRACE * 3 // 4 :]}"
