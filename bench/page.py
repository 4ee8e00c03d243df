"""`docs/performance.md` and its picture, from the results of every run: of everything, claims, extenders, networks.

Owns: the blocks between the marks of the page, and the file of the picture.
Refuses: what stands outside the marks: people write that.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench import picture, report

DOCS: Final = Path(__file__).parents[1] / "docs"
_BLOCK: Final = re.compile(r"(<!-- results -->\n).*?(<!-- end results -->)", re.DOTALL)
_CLAIMS: Final = re.compile(r"(<!-- claims -->\n).*?(<!-- end claims -->)", re.DOTALL)


_EXTENDERS: Final = re.compile(r"(<!-- extenders -->\n).*?(<!-- end extenders -->)", re.DOTALL)
_CLAIMED: Final = re.compile(r"(<!-- claimed -->\n).*?(<!-- end claimed -->)", re.DOTALL)
_NETWORKS: Final = re.compile(r"(<!-- networks -->\n).*?(<!-- end networks -->)", re.DOTALL)


def render(text: str, figures: Mapping[str, Any]) -> str:
    """Return the page with the results of a run in its block."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{report.markdown(figures)}\n\n{block[2]}", text)


def write(figures: Mapping[str, Any], docs: Path) -> None:
    """Write page and picture into a folder that has the page."""
    page = docs / "performance.md"
    page.write_text(render(page.read_text(encoding="utf-8"), figures), encoding="utf-8")
    (docs / "performance.svg").write_text(picture.svg(figures), encoding="utf-8")


def write_claims(figures: Mapping[str, Any], docs: Path) -> None:
    """Write the tables of claims into a folder that has the page."""
    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(_CLAIMS.sub(lambda block: f"{block[1]}\n{report.claims(figures)}\n\n{block[2]}", text), "utf-8")


def write_extenders(figures: Mapping[str, Any], docs: Path) -> None:
    """Write the table of extenders into a folder that has the page."""
    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(
        _EXTENDERS.sub(lambda block: f"{block[1]}\n{report.extenders(figures)}\n\n{block[2]}", text), "utf-8"
    )


def write_claimed(figures: Mapping[str, Any], docs: Path) -> None:
    """Write the table of devices by claims into a folder that has the page."""
    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(_CLAIMED.sub(lambda block: f"{block[1]}\n{report.claimed(figures)}\n\n{block[2]}", text), "utf-8")


def write_networks(figures: Mapping[str, Any], docs: Path) -> None:
    """Write the table of networks as objects into a folder that has the page."""
    page = docs / "performance.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(_NETWORKS.sub(lambda block: f"{block[1]}\n{report.networks(figures)}\n\n{block[2]}", text), "utf-8")
