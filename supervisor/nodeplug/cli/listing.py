"""Tables and sentences at any terminal width, without breaking words.

Owns: where a column goes when its row is too long (to a line of its own below), and what happens to a word that is
longer than a line: a path continues after a `/`, anything else is cut in the middle and marked with `…`.
Refuses: to know what is shown. Text is shown literally: rich markup has no effect, and control characters are escaped.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

CUT: Final = "…"
_GAP: Final = 2
_INDENT: Final = 4
_LEAST: Final = 6
"""Minimum width of a cell, even on a narrow terminal."""


@dataclass(frozen=True, slots=True)
class _Cell:
    lines: tuple[str, ...]
    style: str

    @classmethod
    def of(cls, content: object) -> "_Cell":
        text, style = (content.plain, str(content.style)) if isinstance(content, Text) else (str(content), "")
        return cls(tuple(_harmless(line) for line in text.split("\n")), style)

    @property
    def width(self) -> int:
        return max(map(cell_len, self.lines))


class Listing:
    """A table: a title, headings, and rows of cells, which are plain or styled text, of one or more lines.

    The columns in `below` may go below their row, the last one first.
    """

    def __init__(self, title: str, *columns: str, below: Collection[str] = ()) -> None:
        self._title, self._columns, self._movable = title, columns, below
        self._rows: list[list[_Cell]] = []

    def add(self, *cells: object) -> None:
        """Add a row, one cell per column."""
        self._rows.append([_Cell.of(cell) for cell in cells])

    def __len__(self) -> int:
        return len(self._rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        beside, below = self._places(width)
        widths = _narrowed({number: self._width(number) for number in beside}, width)
        yield _line([(self._title, "bold")])
        yield from _in_columns([_Cell((column,), "bold") for column in self._columns], widths)
        yield _line([("─" * min(width, sum(widths.values()) + _GAP * (len(widths) - 1)), "dim")])
        for row in self._rows:
            yield from _in_columns(row, widths)
            for number in below:
                if any(row[number].lines):
                    yield from self._below(console, width, number, row[number])
        yield _line([])

    def _width(self, number: int) -> int:
        return max(cell_len(self._columns[number]), *(row[number].width for row in self._rows), 0)

    def _places(self, width: int) -> tuple[list[int], list[int]]:
        """Return which columns are side by side, and which go below."""
        beside, below = list(range(len(self._columns))), list[int]()
        movable = [number for number in beside if self._columns[number] in self._movable]
        while movable and sum(map(self._width, beside)) + _GAP * (len(beside) - 1) > width:
            below.insert(0, movable.pop())
            beside.remove(below[0])
        return beside, below

    def _below(self, console: Console, width: int, number: int, cell: _Cell) -> Iterator[Text]:
        label = f"{self._columns[number].lower()}: "
        hang = _INDENT + len(label)
        for turn, line in enumerate(cell.lines):
            lead = Text(" " * hang) if turn else Text.assemble(" " * _INDENT, (label, "dim"))
            yield from _paragraph(console, width, lead, hang, [(line, cell.style)])


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Styled sentences; lines after the first are indented by two columns."""

    parts: Sequence[tuple[str, str]] = field(default_factory=list)
    indent: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        parts = [(_harmless(text), style) for text, style in self.parts]
        yield from _paragraph(console, options.max_width, Text(" " * self.indent), self.indent + _GAP, parts)


def _paragraph(console: Console, width: int, lead: Text, hang: int, parts: Iterable[tuple[str, str]]) -> Iterator[Text]:
    room = max(width - hang, _LEAST)
    text = Text.assemble(*((fit(part, room), style) for part, style in parts))
    for turn, line in enumerate(text.wrap(console, room)):
        line.rstrip()
        yield _unwrapped((Text(" " * hang) if turn else lead).append_text(line))


def fit(text: str, width: int) -> str:
    """Return a text in which no word is wider than a line."""
    return " ".join(_fitted(word, width) if cell_len(word) > width else word for word in text.split(" "))


def _fitted(word: str, width: int) -> str:
    """Continue a path on the next line after a `/`; cut what is still too long."""
    lines = [""]
    for piece in word.replace("/", "/\0").split("\0"):
        if lines[-1] and cell_len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += cut(piece, width)
    return "\n".join(lines)


def cut(text: str, width: int) -> str:
    """Return a text, cut in the middle if it is too wide."""
    if cell_len(text) <= width:
        return text
    room = width - cell_len(CUT)
    head = _head(text, room - room // 3)
    return f"{head}{CUT}{_head(text[::-1], room - cell_len(head))[::-1]}"


def _head(text: str, width: int) -> str:
    return text[: sum(columns <= width for columns in accumulate(map(cell_len, text)))]


def _narrowed(widths: dict[int, int], width: int) -> dict[int, int]:
    """Shrink the widest column until the row fits."""
    available = width - _GAP * (len(widths) - 1)
    while sum(widths.values()) > available and max(widths.values()) > _LEAST:
        widest = max(widths, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _in_columns(row: Sequence[_Cell], widths: dict[int, int]) -> Iterator[Text]:
    for turn in range(max(len(row[number].lines) for number in widths)):
        parts = []
        for number, width in widths.items():
            text = cut(row[number].lines[turn], width) if turn < len(row[number].lines) else ""
            parts.append((text + " " * (width - cell_len(text) + _GAP), row[number].style))
        yield _line(parts)


def _line(parts: Iterable[tuple[str, str]]) -> Text:
    text = Text.assemble(*parts)
    text.rstrip()
    return _unwrapped(text)


def _unwrapped(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _harmless(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
