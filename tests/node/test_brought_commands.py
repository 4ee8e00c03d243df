"""Commands that distributions bring, good and bad ones, as a person meets them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs import need
from tests.suites import divided

pytestmark = pytest.mark.unprivileged

GOOD = """
import typer
app = typer.Typer()

@app.command(help="Count the cards.")
def count() -> None:
    print("two")
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def bring(self, name: str, text: str, distribution: str = "cards") -> None:
        (self.folder / f"{distribution}_command.py").write_text(text)
        info = self.folder / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[nodeplug.commands]\n{name} = {distribution}_command:app\n")

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "200", "TERM": "dumb"}
        command = [sys.executable, "-m", "nodeplug", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_command_that_a_distribution_brings_is_run_and_listed(site: Site) -> None:
    site.bring("cards", GOOD)
    assert site.run("cards").stdout == "two\n"
    assert "Count the cards." in site.run("--help").stdout


@pytest.mark.whole
@pytest.mark.parametrize(
    "text",
    divided(["raise SystemExit(3)", "import missing_card_library", "app = 5", ""], {"import missing_card_library"}),
    ids=["leaves", "misses a library", "is no command", "is empty"],
)
def test_a_command_that_cannot_be_loaded_says_so_and_harms_no_help(site: Site, text: str) -> None:
    site.bring("cards", text)
    helped = site.run("--help")
    assert helped.returncode == 0
    assert "status" in helped.stdout
    refused = site.run("cards")
    assert refused.returncode == 1
    assert "error: the command 'cards' (cards_command:app) cannot be loaded" in refused.stderr


@pytest.mark.whole
def test_a_name_of_our_own_stays_ours(site: Site) -> None:
    site.bring("version", "raise SystemExit(3)")
    assert site.run("version").stdout.startswith("nodeplug ")
    assert len(re.findall(r"^[│ ]+version ", site.run("--help").stdout, re.MULTILINE)) == 1


def test_a_name_that_two_distributions_bring_is_listed_once(site: Site) -> None:
    site.bring("cards", GOOD)
    site.bring("cards", GOOD, "more_cards")
    assert site.run("--help").stdout.count("Count the cards.") == 1


@pytest.mark.whole
def test_what_the_kernel_refuses_is_one_sentence() -> None:
    need("setpriv")
    drop = ["setpriv", "--bounding-set=-net_admin"] if os.geteuid() == 0 else []
    command = [sys.executable, "-m", "nodeplug", "net", "to-reference"]
    done = subprocess.run([*drop, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: cannot list the sets of table nodeplug_masquerade: Operation not permitted\n"
