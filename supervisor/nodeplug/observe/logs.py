"""The daemon's log: one record per line on stderr, for people or for machines.

Owns: the two formats, and the request id and the plugin in each record.
Refuses: files, rotation and levels per module: systemd and the container runtime keep logs. Secrets never reach a log
record, so nothing is filtered here.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from nodeplug.call import CURRENT

Format = Literal["text", "json"]
_OURS: Final = "nodeplug"


def configure(level: str, form: Format, stream: TextIO | None = None) -> logging.Handler:
    """Send every record of the process to stderr; calling it again replaces what the last call set up.

    Args:
        level: "debug", "info", "warning" or "error"; libraries are shown from "warning" on, except with "debug".
        form: "text" or "json".
        stream: instead of stderr.

    Returns:
        The handler.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_add_call)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    chosen = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(chosen if chosen == logging.DEBUG else max(chosen, logging.WARNING))
    for name in (_OURS, "plugin"):
        logging.getLogger(name).setLevel(chosen)
    return handler


def _add_call(record: logging.LogRecord) -> bool:
    """Add the request that the record was written for, seen from its own thread."""
    call = CURRENT.get()
    record.request = call.id if call is not None else ""
    record.plugin = str(getattr(record, "plugin", "") or "")
    return True


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z INFO nodeplug.runner [4f00aa01 bridge] message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; no text in it, a traceback included, can begin a line that looks like a record."""
        where = " ".join(filter(None, (getattr(record, "request", ""), getattr(record, "plugin", ""))))
        message = _printable(record.getMessage())
        line = f"{_time(record)} {record.levelname} {record.name}{f' [{where}]' if where else ''} {message}"
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *(f"  {_printable(part)}" for part in trace)])


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; empty members are left out."""
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": getattr(record, "request", ""),
            "plugin": getattr(record, "plugin", ""),
            "thread": record.threadName if record.threadName != "MainThread" else "",
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in document.items() if value}, ensure_ascii=False)
