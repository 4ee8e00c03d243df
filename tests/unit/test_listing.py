"""Rows and sentences at any width: nothing is broken, nothing is wider than the terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from nodeplug.cli.listing import Listing, Paragraph, cut, fit

WORD = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=90)
SENTENCE = st.lists(WORD, max_size=8).map(" ".join)


def rendered(renderable: RenderableType, width: int) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def listing(*rows: tuple[str, str, str]) -> Listing:
    found = Listing("Things", "NAME", "OWNER", "REASON", below={"OWNER", "REASON"})
    for row in rows:
        found.add(*row)
    return found


def test_a_row_that_fits_is_one_line() -> None:
    lines = rendered(listing(("a", "me", "it is broken")), 80)
    assert lines == ["Things", "NAME  OWNER  REASON", "─" * 25, "a     me     it is broken", ""]


def test_the_last_column_goes_below_first() -> None:
    lines = rendered(listing(("a", "me", "it is broken " * 5)), 40)
    assert lines[1] == "NAME  OWNER"
    assert lines[3:6] == [
        "a     me",
        "    reason: it is broken it is broken it",
        "            is broken it is broken it is",
    ]


def test_a_cell_that_is_empty_has_no_line_below() -> None:
    lines = rendered(listing(("a", "me", ""), ("b", "me", "it is broken " * 5)), 40)
    assert lines[3:5] == ["a     me", "b     me"]


def test_every_line_of_a_cell_is_shown() -> None:
    assert rendered(listing(("a", "me\nyou", "x")), 80)[3:5] == ["a     me     x", "      you"]


def test_a_name_that_is_wider_than_the_terminal_is_marked_as_cut() -> None:
    lines = rendered(listing(("n" * 50, "", "")), 20)
    assert lines[3] == f"{'n' * 13}…{'n' * 6}"


def test_markup_is_shown_as_it_is() -> None:
    assert rendered(Paragraph([("[red]x[/red] [bold", "")]), 80) == ["[red]x[/red] [bold"]


def test_what_a_terminal_would_obey_is_escaped() -> None:
    lines = rendered(listing(("a\x1b[2Jb", "c\td", "e\udcff")), 80)
    assert lines[3] == r"a\x1b[2Jb  c\td   e\udcff"


def test_a_path_goes_on_behind_a_slash() -> None:
    assert fit("/var/lib/kubelet/pods", 12).split("\n") == ["/var/lib/", "kubelet/pods"]


@pytest.mark.parametrize(("width", "expected"), [(7, "abcd…hi"), (9, "abcdefghi"), (2, "a…"), (1, "…")])
def test_what_is_cut_keeps_both_ends(width: int, expected: str) -> None:
    assert cut("abcdefghi", width) == expected


@given(st.lists(st.tuples(WORD, SENTENCE, SENTENCE), max_size=4), st.integers(20, 130))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = rendered(listing(*rows), width)
    assert [line for line in lines if cell_len(line) > width] == []


@given(SENTENCE, st.integers(20, 130))
def test_a_word_is_whole_or_marked_or_goes_on_behind_a_slash(sentence: str, width: int) -> None:
    words = set(sentence.split())
    shown = " ".join(rendered(Paragraph([(sentence, "")]), width)).split()
    pieces = [word for word in shown if word not in words and "…" not in word]
    assert [word for word in pieces if not any("/" in whole and word in whole for whole in words)] == []


def test_styles_reach_the_terminal() -> None:
    console = Console(width=80, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(listing(), Paragraph([("fine", "green")]))
        table = Listing("", "STATE")
        table.add(Text("failed", style="red"))
        console.print(table)
    assert "\x1b[32mfine" in capture.get()
    assert "\x1b[31mfailed" in capture.get()
