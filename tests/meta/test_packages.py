"""What is packed: a wheel holds the same whether it is built from the checkout or from the source distribution."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(source: Path, target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def test_a_wheel_of_the_source_distribution_holds_what_one_of_the_checkout_does(tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, "sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert all((source / page).is_file() for page in ("README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"))
    wheels = [build(ROOT, "wheel", tmp_path / "one"), build(source, "wheel", tmp_path / "two")]
    ours, again = ({name for name in zipfile.ZipFile(wheel).namelist() if "RECORD" not in name} for wheel in wheels)
    assert again == ours
    assert "nodeplug/daemon.py" in ours
    assert not any(name.startswith("tests/") for name in ours)
