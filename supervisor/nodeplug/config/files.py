"""Opening the files of a configuration safely.

Owns: finding and parsing the files, reading only regular ones of a sane size, and limits that TOML leaves open: depth
of tables, size of numbers, no NUL in strings.
Refuses: what a key means, and to continue after an error in a file: the caller collects errors.

A FIFO would block and a device node may act on open, so a path is examined before it is opened. A hung filesystem
blocks this module: the daemon calls it in a thread that it can abandon (`nodeplug.process.aside`).
"""

import errno
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.config.toml_lines import AbsurdDepth, Location, positions
from nodeplug.contract.errors import PluginError

LARGEST_FILE: Final = 1 << 20
MOST_FILES: Final = 500
DEEPEST: Final = 32
_LARGEST_NUMBER: Final = 1 << 63
_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device node"),
    (stat.S_ISBLK, "a device node"),
    (stat.S_ISSOCK, "a socket"),
)
_TOO_DEEP: Final = f"is nested too deep; at most {DEEPEST} tables and lists inside each other"
_TOO_LARGE: Final = "is a number of more than 64 bits, which no key takes"

Mark = tuple[str, int, int, int]
"""Identifies one version of a file: path, inode, time of change, size."""


class Unreadable(PluginError):
    """A file that cannot be read as TOML."""

    def __init__(self, path: Path, text: str, line: int | None = None) -> None:
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}")
        self.path, self.line = path, line or 0


@dataclass(frozen=True, slots=True)
class Document:
    """One file: its tables, the line of each key, and where and how it exceeds our limits."""

    path: Path
    mark: Mark
    tables: dict[str, Any] = field(repr=False)
    positions: Mapping[Location, int] = field(default_factory=dict, repr=False)
    excess: tuple[tuple[Location, str], ...] = ()

    def line(self, location: Location) -> int:
        """Return the line of a key, or of the innermost table around it; else 0."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.positions:
                return self.positions[location[:length]]
        return 0


def read(path: Path, advice: str = "") -> Document:
    """Read one TOML file, or raise Unreadable; `advice` says what to do if it does not exist."""
    data, mark = _bytes(path, advice)
    try:
        text = data.decode()
        places = positions(text)
        tables = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(path, f"is not TOML: byte {error.start} of the file is not valid UTF-8", line) from None
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(path, str(error), text) from None
    except AbsurdDepth as error:
        raise Unreadable(path, _TOO_DEEP, error.line) from None
    except RecursionError:
        raise Unreadable(path, _TOO_DEEP) from None
    except ValueError:  # a number of thousands of digits, which Python refuses to parse
        raise Unreadable(path, f"holds what {_TOO_LARGE}") from None
    return Document(path, mark, tables, places, tuple(_excess(tables)))


def salvage(path: Path) -> dict[str, Any]:
    """Return what a file says before its first syntax error, if anything."""
    try:
        text = _bytes(path, "")[0].decode(errors="replace")
        positions(text)
        return _before_mistake(text.splitlines(keepends=True))
    except (Unreadable, AbsurdDepth, ValueError, RecursionError):
        return {}


def _before_mistake(lines: list[str]) -> dict[str, Any]:
    """Parse the longest prefix that is valid TOML, in few attempts even for many lines."""
    best: dict[str, Any] = {}
    low, high, middle = 0, len(lines), len(lines)  # `low` lines are valid, more than `high` are not
    while low < high:
        try:
            best = tomllib.loads("".join(lines[:middle]))
            low = middle
        except tomllib.TOMLDecodeError as error:
            at = _AT.search(str(error))
            high = min(int(at[1]) - 1, middle - 1) if at and at[1] else middle - 1
            if at and at[1]:  # the part before parsed; at most its end is missing
                middle = high
                continue
        middle = (low + high + 1) // 2
    return best


def drop_ins(folder: Path) -> list[Path]:
    """Return the drop-ins of a folder by name, without hidden files, which editors leave behind.

    Raises:
        FileNotFoundError: the folder does not exist.
        Unreadable: it is not a folder, cannot be listed, or holds too much.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.match("[!.]*.toml"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(folder, f"the drop-in folder cannot be read: {_reason(error)}") from error
    if len(names) > MOST_FILES:
        raise Unreadable(folder, f"the drop-in folder has {len(names)} files; at most {MOST_FILES} are read")
    return [folder / name for name in names]


def _bytes(path: Path, advice: str) -> tuple[bytes, Mark]:
    try:
        _check(path, path.stat())
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check(path, status)
            data = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise Unreadable(path, f"the file does not exist{advice}") from None
    except OSError as error:
        raise Unreadable(path, f"cannot be read: {_reason(error)}") from error
    if len(data) > LARGEST_FILE:
        raise _larger(path)
    return data, (str(path), status.st_ino, status.st_mtime_ns, status.st_size)


def _check(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for test, name in _KINDS if test(status.st_mode)), "no file")
        raise Unreadable(path, f"is {kind}; a configuration is a regular file")
    if status.st_size > LARGEST_FILE:
        raise _larger(path)


def _larger(path: Path) -> Unreadable:
    return Unreadable(path, f"is larger than {LARGEST_FILE >> 20} MiB, which no configuration is")


def _reason(error: OSError) -> str:
    return error.strerror or errno.errorcode.get(error.errno or 0, "unknown error")


def _not_toml(path: Path, message: str, text: str) -> Unreadable:
    at = _AT.search(message)
    what = message[: at.start()] if at else message
    if at and at[1]:
        return Unreadable(path, f"is not TOML: {what} (column {at[2]})", int(at[1]))
    return Unreadable(path, f"is not TOML: {what} (at its end)", text.count("\n") + 1)


def _excess(tables: dict[str, Any]) -> list[tuple[Location, str]]:
    """Find what later steps could not handle: they recurse, print numbers and open paths."""
    found: list[tuple[Location, str]] = []
    rest: list[tuple[Location, Any]] = [((), tables)]
    while rest:
        location, value = rest.pop()
        if len(location) > DEEPEST:
            found.append((location[:4], _TOO_DEEP))
        elif isinstance(value, dict):
            found += [((*location, key), "has a NUL in its name") for key in value if "\0" in key]
            rest += [((*location, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            rest += [((*location, index), inner) for index, inner in enumerate(value)]
        elif isinstance(value, int) and not -_LARGEST_NUMBER <= value < _LARGEST_NUMBER:
            found.append((location, _TOO_LARGE))
        elif isinstance(value, str) and "\0" in value:
            found.append((location, "holds a NUL, which no path, name or option can hold"))
    return found
