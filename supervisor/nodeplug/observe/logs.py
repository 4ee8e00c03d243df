"""The daemon's log: one record per line on stderr, for people or for machines.

Owns: the two formats, the request id and the plugin in each record, and the size limits of a record.
Refuses: files, rotation and levels per module: systemd and the container runtime keep logs. The daemon's own records
have no secrets; those of plugins are masked.

A record is formatted by the thread that made it, without any lock held: the text of an exception comes from the
plugin's code, and may be large, slow, or hang.
"""

import json
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from nodeplug.contract.errors import SHOWN, clip
from nodeplug.contract.tracebacks import traced
from nodeplug.hosting.call import CURRENT

Format = Literal["text", "json"]
_OURS: Final = "nodeplug"
_OF_PLUGINS: Final = "nodeplug.plugin."
MESSAGE: Final = 2 * SHOWN
"""Characters of a message: an error's text, and what the daemon adds."""


def configure(level: str, form: Format, stream: TextIO | None = None) -> "Handler":
    """Send every record of the process to stderr in place of what an earlier call set up; return the handler.

    Libraries are shown from "warning" on, unless the level is "debug".
    """
    handler = Handler(stream or sys.stderr)
    handler.addFilter(_add_call)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    chosen = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(chosen if chosen == logging.DEBUG else max(chosen, logging.WARNING))
    for name in (_OURS, "plugin"):
        logging.getLogger(name).setLevel(chosen)
    return handler


class Handler(logging.StreamHandler[TextIO]):
    """Formats records without the lock; the base class formats while it holds it.

    Attributes:
        mask: hides secrets in a text; it is asked for what plugins log by `host.log`.
    """

    mask: Callable[[str], str] = staticmethod(str)

    def handle(self, record: logging.LogRecord) -> bool:
        """Format without the lock, then write."""
        if not self.filter(record):
            return False
        try:
            if record.name.startswith(_OF_PLUGINS) or getattr(record, "of_process", False):
                record.mask = self.mask
            line = self.format(record) + self.terminator
            with self.lock or nullcontext():
                self.stream.write(line)
                self.flush()
        except Exception:
            self.handleError(record)
        return True

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the base class
        """Say that a record cannot be written, without its text, which nobody has masked."""
        with suppress(OSError, ValueError, OverflowError):
            kind = type(sys.exception()).__name__
            self.stream.write(f"{_time(record)} ERROR {__name__} a record is lost: {kind}\n")


def _trace(record: logging.LogRecord) -> str:
    """Format a record's traceback."""
    if not record.exc_info:
        return _masked(record, str(getattr(record, "trace", "")))  # of another process
    kind, error, place = record.exc_info
    if kind is None or error is None:
        return ""
    return _masked(record, traced(error, kind, place))


def _message(record: logging.LogRecord) -> str:
    return clip(_masked(record, record.getMessage()), MESSAGE)


def _masked(record: logging.LogRecord, text: str) -> str:
    mask: Callable[[str], str] = getattr(record, "mask", str)
    return mask(text)


def _add_call(record: logging.LogRecord) -> bool:
    """Add the request id and the plugin to a record, in the thread that made it."""
    call = CURRENT.get()
    record.request = call.id if call is not None else str(getattr(record, "request", ""))
    record.plugin = str(getattr(record, "plugin", "") or "")
    return True


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO nodeplug.hosting.runner [4f00aa01 bridge] message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record. No text in it, not even a traceback, can start a line that looks like a record."""
        where = " ".join(filter(None, (getattr(record, "request", ""), getattr(record, "plugin", ""))))
        message = _printable(_message(record))
        name, where = _printable(_masked(record, record.name)), _printable(_masked(record, where))
        line = f"{_time(record)} {record.levelname} {name}{f' [{where}]' if where else ''} {message}"
        return "\n".join([line, *(f"  {_printable(part)}" for part in _trace(record).splitlines())])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record, without empty members."""
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": _masked(record, record.name),
            "message": _message(record),
            "request": _masked(record, getattr(record, "request", "")),
            "plugin": getattr(record, "plugin", ""),
            "thread": record.threadName if record.threadName != "MainThread" else "",
            "exception": _trace(record).rstrip("\n"),
        }
        return json.dumps({name: value for name, value in document.items() if value}, ensure_ascii=False)
