"""The line of each key."""

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeplug.config.toml_lines import Location, positions


@pytest.mark.parametrize(
    ("text", "location", "line"),
    [
        ("a = 1\nb = 2", ("b",), 2),
        ("# c\n\n[t]\n\nx.y = 1", ("t", "x", "y"), 5),
        ("[t.u]\nx = 1\n[t]\ny = 1", ("t",), 3),
        ("[[a]]\nx = 1\n[[a]]\nx = 2\n[a.b]\nz = 1", ("a", 1, "b", "z"), 6),
        ("[[a]]\n[[a.c]]\n[[a]]\n[[a.c]]\n[[a.c]]\nq = 1", ("a", 1, "c", 1, "q"), 6),
        ("a = [\n  1, # ]\n  {x = 1},\n]", ("a", 1, "x"), 3),
        ('a = """\n[b]\nc = 1\n"""\nd = 1', ("d",), 5),
        ("a = '''\n'x'\n''''\nd = 1", ("d",), 4),
        ('a = """x\\""""\nb = """"""\nd = 1', ("d",), 3),
        ('"a.b" = 1\n\'c d\' = 2\n"\\u0065" = 3', ("e",), 3),
        ("a = 1979-05-27 07:32:00 # x\nb = 1", ("b",), 2),
        ("a = 1\r\nb = 1\r\n", ("b",), 2),
        ("t = { a.b = 1, c = [ { d = 2 } ] }", ("t", "c", 0, "d"), 1),
        ('a = "# ] } = \\" "\nb = 1', ("b",), 2),
        ("[ a . 'b' ]\nc = 1", ("a", "b", "c"), 2),
    ],
)
def test_a_key_is_found_on_its_line(text: str, location: Location, line: int) -> None:
    tomllib.loads(text)
    assert positions(text)[location] == line


def paths(value: Any, at: Location = ()) -> set[Location]:
    if isinstance(value, dict):
        found = {path for key, inner in value.items() for path in paths(inner, (*at, key))}
    elif isinstance(value, list):
        found = {path for index, inner in enumerate(value) for path in paths(inner, (*at, index))}
    else:
        found = set()
    return found | ({at} if at else set())


PARTS = st.sampled_from(
    [
        "[a]", "[[a]]", "[a.b]", "[[a.b]]", "[b]", "[[b.c]]", "x = 1", "y.z = 'a#b'", "x = [1, [2, {q = 3}]]",
        's = """\n[a]\n"""', "t = {u = {v = [\n1,\n2,\n]}}", "# [a]", "", 'z = "\\"]"', "[c.'d.e']", "w = 07:32:00.5",
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=2 * settings().max_examples)
@given(st.lists(PARTS, max_size=14))
def test_every_key_of_a_valid_document_has_a_line_that_holds_it(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = positions(text)
    assert set(found) == paths(document)
    written = text.split("\n")
    for location, line in found.items():
        if isinstance(location[-1], str):
            assert location[-1] in written[line - 1]


@given(st.text(max_size=200))
def test_a_text_that_is_no_toml_raises_nothing(text: str) -> None:
    positions(text)
