"""The line of each key in a TOML document.

Owns: a light scan of a document, before `tomllib` reads it: strings, brackets and keys, not values.
Refuses: to report invalid TOML, except absurd depth: here and in `tomllib` a key costs as much as it is deep, and one
mebibyte of dots would use up the node's memory.
"""

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from typing import Final

Location = tuple[str | int, ...]
"""Keys and list indexes, from the top."""

ABSURD: Final = 128
"""Depth of nested keys and lists at which the scan gives up."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SCALAR: Final = re.compile(r"[^,\]}#\n]*")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'", re.DOTALL
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class AbsurdDepth(Exception):
    """A key is absurdly deep; `line` counts from 1."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def positions(text: str) -> dict[Location, int]:
    """Return the line, from 1, of every table, key and list element of a valid document.

    Raises:
        AbsurdDepth: something is deeper than `ABSURD`. This is cheap to find, so call this before `tomllib`.
    """
    scan = _Scan(text)
    with suppress(_Lost, RecursionError):  # what was found so far is valid
        scan.document()
    return scan.found


class _Lost(Exception):
    """The text is not what the scan expected."""


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: dict[Location, int] = {}
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._lengths: dict[Location, int] = {}

    def document(self) -> None:
        table: Location = ()
        self._skip()
        while self.at < len(self.text):
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip()

    def _header(self) -> Location:
        line, double = self._line(), self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        *outer, last = self._keys()
        self._expect("]]" if double else "]")
        table: Location = ()
        for key in outer:
            table = (*table, key)
            self.found.setdefault(table, line)
            if table in self._lengths:  # the header continues inside the newest element of a list of tables
                table = (*table, self._lengths[table] - 1)
        table = (*table, last)
        if double:
            self._lengths[table] = self._lengths.get(table, 0) + 1
            self.found.setdefault(table, line)
            table = (*table, self._lengths[table] - 1)
        self.found[table] = line
        return table

    def _pair(self, table: Location) -> None:
        line = self._line()
        for key in self._keys():
            table = (*table, key)
            self.found.setdefault(table, line)
        self._expect("=")
        self._skip()
        self._value(table)

    def _keys(self) -> list[str]:
        keys = [self._key()]
        while self._peek() == ".":
            self.at += 1
            keys.append(self._key())
            self._bound(len(keys))
        return keys

    def _key(self) -> str:
        self._skip()
        bare = _BARE.match(self.text, self.at)
        match = bare or _STRING.match(self.text, self.at)
        if match is None:
            raise _Lost
        self.at = match.end()
        self._skip()
        return match[0] if bare is not None else str(tomllib.loads(f"key = {match[0]}")["key"])

    def _value(self, location: Location) -> None:
        self._bound(len(location))
        string = _STRING.match(self.text, self.at)
        if string is not None:
            self.at = string.end()
        elif self._peek() == "[":
            self._list(location)
        elif self._peek() == "{":
            self._inline(location)
        else:
            scalar = _SCALAR.match(self.text, self.at)
            self.at = scalar.end() if scalar is not None else len(self.text)

    def _list(self, location: Location) -> None:
        self._expect("[")
        self._skip()
        index = 0
        while self._peek() != "]":
            self.found[*location, index] = self._line()
            self._value((*location, index))
            self._comma("]")
            index += 1
        self.at += 1

    def _inline(self, location: Location) -> None:
        self._expect("{")
        self._skip()
        while self._peek() != "}":
            self._pair(location)
            self._comma("}")
        self.at += 1

    def _comma(self, end: str) -> None:
        self._skip()
        if self._peek() == ",":
            self.at += 1
            self._skip()
        elif self._peek() != end:
            raise _Lost

    def _expect(self, text: str) -> None:
        self._skip()
        if not self.text.startswith(text, self.at):
            raise _Lost
        self.at += len(text)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank is not None else self.at

    def _bound(self, depth: int) -> None:
        if depth > ABSURD:
            raise AbsurdDepth(self._line())

    def _line(self) -> int:
        return bisect_right(self._starts, self.at)
