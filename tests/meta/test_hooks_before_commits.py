"""What pre-commit runs is what `make lint` runs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands(text: str, line: str) -> set[str]:
    """Return the tools with their subcommands, such as `ruff check`, without options and paths."""
    found = re.findall(line, text, re.MULTILINE)
    return {
        " ".join(word for word in one.split()[:2] if word in {"check", "format"} or word == one.split()[0])
        for one in found
    }


def test_the_hooks_before_a_commit_are_the_checks_of_make_lint() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    wanted = commands(recipe, r"^\t\$\(RUN\)/(.+)$")
    assert wanted == {"ruff format", "ruff check", "mypy", "lint-imports", "codespell"}
    assert commands(hooks, r"^ +entry: \.venv/bin/(.+)$") == wanted


def test_the_hooks_before_a_commit_spell_check_what_make_lint_does() -> None:
    recipe = re.search(r"^\t\$\(RUN\)/codespell (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    files = re.findall(r"files: (\S+)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))[-1]
    assert recipe
    for path in recipe[1].split():
        assert re.match(files, path if path.endswith(".md") else f"{path}/file"), path


def test_the_hooks_before_a_commit_need_no_network() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"repo: (\S+)", hooks)) == {"local"}
    assert set(re.findall(r"language: (\S+)", hooks)) == {"system"}
