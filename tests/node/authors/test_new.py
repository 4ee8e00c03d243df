"""What `nodeplug new` writes, as its author finds it. That its tests pass is the first step of each tutorial."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.suites import divided

from nodeplug.cli.scaffold import STYLES

ROOT = Path(__file__).parents[3]
LONGEST = "a-name-with-thirty-characters0"


@pytest.mark.xdist_group("mypy")  # what it knows of the libraries is kept in one process
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", divided(["mine", LONGEST], (), ["mine"]))
def test_a_new_package_has_no_finding_of_ruff_or_mypy(style: str, name: str, new_author: Any) -> None:
    new_author.types(f"nodeplug new {style} {name}")
    new_author.types(f"cd nodeplug-{name}")
    new_author.types("ruff check .")
    new_author.types("ruff format --check .")
    new_author.types("mypy")


@pytest.mark.whole
def test_the_tests_of_a_new_package_pass_before_it_is_installed(new_author: Any) -> None:
    new_author.types("nodeplug new device mine")
    new_author.types("cd nodeplug-mine")
    assert "8 passed" in new_author.types("pytest -q")


@pytest.mark.whole
def test_an_installed_package_is_found_by_its_entry_point(new_author: Any) -> None:
    new_author.types("nodeplug new volume mine")
    new_author.types("pip install -q ./nodeplug-mine")
    (new_author.cwd / "nodeplug.toml").write_text('version = 1\n[plugins.mine]\nuser = "root"\n')
    answer = json.loads(new_author.types("nodeplug plugins --json --config nodeplug.toml --root . 2>/dev/null"))
    assert [(row["name"], row["claims"]) for row in answer["plugins"]] == [("mine", ["volume:example.com/mine"])]
    assert answer["plugins"][0]["distribution"] == "nodeplug-mine 0.1.0"


@pytest.mark.whole
def test_its_configuration_is_accepted_as_a_drop_in(new_author: Any) -> None:
    new_author.types("nodeplug new cni mine --directory here")
    new_author.types("pip install -q ./here")
    new_author.types("mkdir plugins.d && cp here/mine.toml plugins.d && echo version = 1 > nodeplug.toml")
    assert "1500" in new_author.types("nodeplug check-config --config nodeplug.toml --root .")


@pytest.mark.whole
def test_a_second_new_of_the_same_name_changes_nothing(new_author: Any) -> None:
    new_author.types("nodeplug new device mine")
    plugin = new_author.cwd / "nodeplug-mine" / "src" / "nodeplug_mine" / "__init__.py"
    plugin.write_text("mine\n")
    printed = new_author.types("nodeplug new device mine || echo refused")
    assert "nodeplug-mine is not empty" in printed
    assert plugin.read_text() == "mine\n"


def test_the_help_leads_to_the_tutorials(new_author: Any) -> None:
    assert "docs/tutorial-device.md" in new_author.types("nodeplug new --help")


@pytest.mark.whole
def test_the_wheel_of_nodeplug_has_the_templates_and_the_fixtures(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    written = {
        str(path.relative_to(ROOT / "supervisor"))
        for path in ROOT.glob("supervisor/nodeplug/cli/scaffold/**/*.template")
    }
    assert written
    assert written <= names
    assert "pytest_nodeplug.py" in names
    assert "[pytest11]\nnodeplug = pytest_nodeplug" in points
