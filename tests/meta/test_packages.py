"""What is packed: a wheel holds the same whether it is built from the checkout or from the source distribution."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.mark.whole
def test_a_wheel_of_the_source_distribution_holds_what_one_of_the_checkout_does(tmp_path: Path) -> None:
    # The `filter` of Python's own extraction came with 3.11.4, and 3.12 warns of its absence.
    packed, unpacked = build(ROOT, "sdist", tmp_path / "sdist"), tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xzf", packed, "-C", unpacked], check=True)
    (source,) = unpacked.iterdir()
    assert all((source / page).is_file() for page in ("README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"))
    wheels = [build(ROOT, "wheel", tmp_path / "one"), build(source, "wheel", tmp_path / "two")]
    ours, again = ({name for name in zipfile.ZipFile(wheel).namelist() if "RECORD" not in name} for wheel in wheels)
    assert again == ours
    assert "nodeplug/daemon.py" in ours
    assert not any(name.startswith("tests/") for name in ours)
