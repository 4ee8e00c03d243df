"""Each rule that the kubelet stand-in claims to follow has a test, and each of its tests stands for a rule."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    *(ROOT / "tests" / "node" / "device").glob("test_kubelet_*.py"),
    *(ROOT / "tests" / "unit").glob("test_kubelet_*.py"),
    ROOT / "tests" / "real" / "test_stand_in.py",
]


def named() -> list[str]:
    return re.findall(r"`(test_\w+)`", (ROOT / "docs" / "kubelet-stand-in.md").read_text())


def written() -> set[str]:
    return {name for file in FILES for name in re.findall(r"^def (test_\w+)", file.read_text(), flags=re.MULTILINE)}


def test_every_rule_of_the_page_has_its_test() -> None:
    assert set(named()) - written() == set()


def test_every_test_of_the_stand_in_stands_for_a_rule_of_the_page() -> None:
    assert written() - set(named()) == set()


def test_every_rule_has_a_test_named() -> None:
    page = (ROOT / "docs" / "kubelet-stand-in.md").read_text()
    rows = re.findall(r"^\| (?!rule|-)(.*) \| (.*) \|$", page, flags=re.MULTILINE)
    assert len(rows) > 40
    assert [rule for rule, tests in rows if "`test_" not in tests] == []
