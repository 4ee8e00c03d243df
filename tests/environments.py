"""Virtual environments of plugins, made without a network.

Owns: wheels of nodeplug and of what is installed beside it, packed anew from their files, and environments from them.
Refuses: anything of the environment in which the tests run: nothing is linked, and nothing of it is on a path there.
"""

import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
ACME = ROOT / "tests" / "node" / "workers"
POINTS = "[nodeplug.v1]\nacme = acme:Acme\nguest = acme_guest:Guest\nlost = acme_lost:Lost\nbroken = acme_broken:No\n"
NAME = re.compile(r"[\w.-]+")


def of_plugins() -> list[str]:
    """Return what nodeplug needs without extras, and what that needs."""
    found: list[str] = []
    waiting = [NAME.match(one) for one in requires("nodeplug") or () if "extra ==" not in one]
    while waiting:
        name = waiting.pop()
        if name is None or name[0] in found:
            continue
        found.append(name[0])
        waiting += [NAME.match(one) for one in requires(name[0]) or () if "extra ==" not in one]
    return found


def pack(names: Iterable[str], folder: Path) -> None:
    """Make wheels of installed distributions; one that is installed as a checkout is built."""
    for name in names:
        one = distribution(name)
        if json.loads(one.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
            build(ROOT, folder)
            continue
        with zipfile.ZipFile(folder / _file_name(one), "w") as wheel:
            for place, inside in _files(one):
                wheel.write(place, inside)


def _file_name(one: Distribution) -> str:
    (tag, *_) = re.findall(r"^Tag: (\S+)$", one.read_text("WHEEL") or "", re.MULTILINE)
    return f"{one.name.replace('-', '_')}-{one.version}-{tag}.whl"


def _files(one: Distribution) -> Iterator[tuple[Path, str]]:
    for file in one.files or ():
        if not (".." in file.parts or "__pycache__" in file.parts or file.name in {"INSTALLER", "direct_url.json"}):
            yield Path(str(file.locate())), str(file)


def build(source: Path, folder: Path) -> Path:
    """Build the wheel of a project."""
    before = set(folder.glob("*.whl"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = set(folder.glob("*.whl")) - before
    return built


def make(folder: Path, wheels: Path, *names: str) -> Path:
    """Make an environment with distributions from a folder of wheels; return its Python."""
    venv.create(folder, symlinks=True)
    install(folder / "bin" / "python", wheels, *names)
    return folder / "bin" / "python"


def install(python: Path, wheels: Path, *names: str) -> None:
    if names:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
        offline = ["--no-compile", "--no-index", "--find-links", str(wheels)]
        subprocess.run([*pip, *offline, *names], check=True, capture_output=True, text=True)


def copy(folder: Path, wheels: Iterable[Path]) -> Path:
    """Make an environment of copies: nodeplug, what it needs without extras, and wheels that have no programs.

    Quicker than `make`, with which pip builds and installs the same files.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ["nodeplug", *of_plugins()]:
        one = distribution(name)
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            place = Path(str(one.locate_file(top)))
            if place.suffix != ".pth":
                (shutil.copytree if place.is_dir() else shutil.copy2)(place, site / top)
    shutil.copytree(ROOT / "supervisor" / "nodeplug", site / "nodeplug", dirs_exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    # Whoever copies this further has compiled modules as well.
    subprocess.run([str(python), "-c", "import nodeplug.worker.inside, nodeplug.loading.discovery"], check=True)
    return python


def pack_modules(
    name: str, version: str, folder: Path, *, points: str, needs: Iterable[str] = (), **modules: str
) -> None:
    """Make a wheel of modules, given by name and text, with entry points as in entry_points.txt."""
    about = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    files = {f"{module}.py": text for module, text in modules.items()} | {
        f"{about}/METADATA": "\n".join([*metadata, *(f"Requires-Dist: {one}" for one in needs), ""]),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": points,
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def pack_acme(folder: Path, version: str) -> None:
    """Make the wheels of a plugin, and of the library that only it has."""
    pack_modules("acme_library", version, folder, points="", acme_library=f"VERSION = {version!r}\n")
    pack_modules(
        "acme",
        version,
        folder,
        points=POINTS,
        needs=["nodeplug", f"acme_library=={version}"],
        acme=(ACME / "acme.py").read_text(),
        acme_guest=(ACME / "worker_guest.py").read_text(),
        guest_faults=(ACME / "guest_faults.py").read_text(),
        cut_frames=(ACME / "cut_frames.py").read_text(),
        lingering=(ACME / "lingering.py").read_text(),
        acme_broken="raise LookupError('there is no card')\n",
    )
