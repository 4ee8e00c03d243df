"""Every test and every target of make is run by something, and the table in docs/contributing.md says by what."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.suites import SUITES, suite_of

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE)
ROWS = re.findall(r"^\| (`make .*?) \| (.*?) \| (.*?) \|$", (ROOT / "docs/contributing.md").read_text(), re.MULTILINE)
GIVEN = [
    (target, name)
    for commands, _, by in ROWS
    for target in re.findall(r"`make ([a-z-]+)`", commands)
    for name in re.findall(r"`\.ci/([a-z-]+)`", by)
]
"""Each target with each script of which the table says that it runs it."""
PARTS = {"test": {"lint", "quick"}, "test-all": {"lint", "quick", "rest"}, "real": {"rest"}}
"""What is in parts where `.ci/run` has parts."""

MARKED = """
import pytest
pytestmark = pytest.mark.whole
@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.matrix)])
def of_a_fixture(request): ...
def test_by_its_file(): ...
@pytest.mark.soak
def test_by_its_own(of_a_fixture): ...
@pytest.mark.quick
@pytest.mark.parametrize("value", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_by_a_parameter(value): ...
"""
PROPERTY = """
from hypothesis import given, strategies
@given(strategies.integers())
def test_a_property(value): ...
def test_an_example(): ...
"""


def script(name: str) -> str:
    return (ROOT / ".ci" / name).read_text()


def commands_of(name: str) -> set[str]:
    """Return the targets of make that a script gives."""
    given = re.sub(r"^\s*#.*", "", script(name), flags=re.MULTILINE)
    lines = re.findall(r"\bmake ([a-z -]+)|^for target in (.*);", given, re.MULTILINE)
    return {word for line in lines for words in line for word in words.split()}


@pytest.mark.parametrize("target", TARGETS)
def test_the_table_names_every_target_once(target: str) -> None:
    assert [commands for commands, _, _ in ROWS if f"`make {target}`" in commands] != []
    assert "".join(commands for commands, _, _ in ROWS).count(f"`make {target}`") == 1


def test_everything_is_run_by_a_script_or_somebody() -> None:
    assert [row for row in ROWS if not re.search(r"`\.ci/|tests/meta|^you, ", row[2])] == []


@pytest.mark.parametrize(("target", "name"), GIVEN)
def test_a_script_gives_the_commands_that_the_table_says(target: str, name: str) -> None:
    wanted = PARTS.get(target, {target}) if name == "run" else {target}
    assert wanted <= commands_of(name)


@pytest.mark.programs("make")
def test_help_has_a_line_for_every_target() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[0] for line in said.splitlines()) == sorted(TARGETS)
    assert all(len(line.split()) > 2 for line in said.splitlines())


@pytest.mark.programs("make")
def test_clean_removes_the_environment_and_leaves_the_sources(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


def test_every_suite_is_chosen_by_a_command() -> None:
    chosen = " ".join(re.findall(r"-m (\"[^\"]*\"|\w+)", MAKEFILE + script("matrix")))
    assert [suite for suite in SUITES if not re.search(rf"(?<!not )\b{suite}\b", chosen)] == []


def test_the_quick_suite_and_the_rest_together_choose_every_suite_of_continuous_integration() -> None:
    run = Path(ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(f"make {target}" in run for target in ("quick", "rest"))
    (quick,) = re.findall(r"^quick:.*\n\t.* -m (\w+)", MAKEFILE, re.MULTILINE)
    (rest,) = re.findall(r"^rest:.*\n\t.* -m \"(.*)\"", MAKEFILE, re.MULTILINE)
    assert {quick, *rest.split(" or ")} >= {"quick", "whole", "consumers"}


def test_every_test_of_a_kind_of_link_is_in_what_the_emulated_kernel_runs() -> None:
    """This is the only kernel that has them all, so a test elsewhere could be skipped everywhere."""
    (emulated,) = re.findall(r'^EMULATED="(.*?)"', script("emulated"), re.MULTILINE | re.DOTALL)
    using = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"mark\.link_kind|\bneed_kind\(", path.read_text())
        and path.parent not in (ROOT / "tests", Path(__file__).parent)
    ]
    assert using != []
    assert [path for path in using if not path.startswith(tuple(emulated.split()))] == []


@pytest.mark.parametrize(
    ("suite", "members"),
    [
        ("quick", {"by_a_parameter[1]"}),
        ("whole", {"by_its_file"}),
        ("soak", {"by_its_own[1]", "by_a_parameter[2]"}),
        ("matrix", {"by_its_own[2]"}),
    ],
)
def test_a_test_with_marks_of_several_suites_is_in_one(suite: str, members: set[str], tmp_path: Path) -> None:
    assert chosen(tmp_path, MARKED, suite) == members


def test_properties_of_the_quick_suite_are_run_again_with_the_whole(tmp_path: Path) -> None:
    (expression,) = re.findall(r'NODEPLUG_EXAMPLES=many \$\(PYTEST\) -m "(.*whole.*)"', MAKEFILE)
    assert chosen(tmp_path, PROPERTY, expression) == {"a_property"}


def test_a_test_of_consumers_cannot_be_marked_as_quick() -> None:
    """No command would run it: the quick suite does not look into tests/real, and no other has a quick test."""
    item = SimpleNamespace(
        nodeid="a", path=ROOT / "tests/real/test_a.py", iter_markers=lambda: [pytest.mark.quick.mark]
    )
    with pytest.raises(pytest.UsageError, match="a cannot be in the quick suite"):
        suite_of(cast("pytest.Item", item))


def chosen(folder: Path, tests: str, expression: str) -> set[str]:
    """Return the tests of a file that pytest chooses for `-m`."""
    (folder / "test_marked.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    options = ("-p", "tests.suites", "--collect-only", "-q", "-m", expression, "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "_hypothesis_pytestplugin"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"::test_(\S+)", done.stdout))
