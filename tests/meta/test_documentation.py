"""Pages lead somewhere: links, files and commands that they name exist."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest
import typer
import typer.main
from typer.core import TyperGroup

from nodeplug.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TOP = ("supervisor", "plugins", "proto", "bin", "configs", "tests", "docs", "deploy", "bench")
FILE_IN_REPOSITORY = re.compile(rf"(?<![\w./~-])(?:{'|'.join(TOP)})/[\w./*-]*[\w*/]")
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
# A tutorial's files are those of its reader; tests/node/authors writes and runs them.
each_page_about_here = pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.name.startswith("tutorial-")],
    ids=lambda page: str(page.relative_to(ROOT)),
)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if target.startswith(("http://", "https://")):
            continue
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@each_page_about_here
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = FILE_IN_REPOSITORY.findall(page.read_text())
    places = (ROOT, page.parent)
    assert [name for name in named if not any(list(place.glob(name.rstrip("/"))) for place in places)] == []


@each_page_about_here
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    places = ROOT, ROOT / "supervisor" / "nodeplug", ROOT / "docs" / "examples"
    named = MODULE.findall(page.read_text())
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@cache
def list_of_commands() -> list[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found: list[str] = []
    for name in group.list_commands(typer.Context(group)):  # those of plugins too
        below = getattr(group.get_command(typer.Context(group), name), "commands", {})
        found += [name, *(f"{name} {one}" for one in below)]
    return found


@cache
def commands() -> set[str]:
    return set(list_of_commands())


def test_the_command_table_is_the_command_line() -> None:
    table = re.findall(
        r"^\| `nodeplug ([a-z -]+)` \|", (ROOT / "docs" / "operating.md").read_text(), flags=re.MULTILINE
    )
    assert sorted(table) == sorted(commands())


def test_the_manual_page_has_every_command() -> None:
    page = (ROOT / "docs" / "man" / "nodeplug.1").read_text()
    shown = [one.strip() for one in re.findall(r'^\.SS "nodeplug ([a-z -]+)', page, flags=re.MULTILINE)]
    assert shown == list_of_commands()


def test_an_installation_has_the_manual_page_where_man_looks() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["shared-data"]["docs/man"] == "share/man/man1"


@each_page
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?:`|^[#$] )nodeplug ([a-z][a-z-]*)", text, flags=re.MULTILINE)
    assert [name for name in named if name not in commands()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        reached.add(page)
        links = (page.parent / target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()))
        found = {
            file.resolve() for link in links if link.exists() for file in (link.rglob("*.md"), [link])[link.is_file()]
        }
        todo += [file for file in found - reached - set(todo) if file.suffix == ".md"]
    assert [str(page) for page in PAGES if page not in reached and page.name != "CHANGELOG.md"] == []


def test_a_release_has_every_file_that_an_installation_copies() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    copied = set(re.findall(r"^# cp ([a-z.]+)/\S+", page, flags=re.MULTILINE))
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert copied
    assert copied <= set(build["only-include"])
