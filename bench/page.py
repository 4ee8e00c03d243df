"""`docs/performance.md` and its picture, from the results of every run: of everything, claims, extenders, networks.

Owns: the blocks between the marks of the page, the file of the picture, and what is kept of a run that has a table.
Refuses: what stands outside the marks: people write that.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench import picture, report

DOCS: Final = Path(__file__).parents[1] / "docs"
RESULTS: Final = Path(__file__).parent / "results"
_BLOCK: Final = re.compile(r"(<!-- results -->\n).*?(<!-- end results -->)", re.DOTALL)


def render(text: str, figures: Mapping[str, Any]) -> str:
    """Return the page with the results of a run in its block."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{report.markdown(figures)}\n\n{block[2]}", text)


def write(figures: Mapping[str, Any], docs: Path) -> None:
    """Write page and picture into a folder that has the page."""
    page = docs / "performance.md"
    page.write_text(render(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    (docs / "performance.svg").write_text(picture.svg(figures), encoding="utf-8")


def write_table(name: str, table: str, docs: Path) -> None:
    """Write the table of one run between its marks, `<!-- name -->`, into a folder that has the page."""
    page = docs / "performance.md"
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    text = page.read_text(encoding="utf-8")
    page.write_text(block.sub(lambda marks: f"{marks[1]}\n{table}\n\n{marks[2]}", text), encoding="utf-8")


def keep(name: str, figures: Mapping[str, Any]) -> None:
    """Keep the figures of a run, print its table, and show it on the page unless the run was a quick one."""
    table = report.TABLES[name](figures)
    path = RESULTS / f"{name}{'-quick' if figures['quick'] else ''}.json"
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    print(table)
    if not figures["quick"]:
        write_table(name, table, DOCS)
