"""A new plugin's package, written by `nodeplug new`.

Owns: the names derived from one name, and the files; their contents are in `templates/`, as string.Template.
Refuses: to overwrite anything, and names that cannot be packaged or imported, or that are taken.
"""

import keyword
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Final, Self

import nodeplug
from nodeplug.contract.errors import InvalidRequest
from nodeplug.loading.discovery import installed

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST: Final = 30
_PREFIX: Final = "nodeplug-"
# What the templates import besides nodeplug's own names: a class of that name would shadow it.
_IMPORTED: Final = frozenset(
    ["Any", "BaseModel", "ClassVar", "ConfigDict", "Field", "FlexVolume", "IPRoute", "Mapping", "Path"]
)
_SUFFIX: Final = ".template"
STYLES: Final = ("device", "cni", "volume", "extender")


@dataclass(frozen=True, slots=True)
class Names:
    """Every name of a package.

    Attributes:
        name: of the plugin: its section and entry point, and the base of its claim.
        distribution: what pip installs.
        package: what Python imports.
        cls: the class.
    """

    name: str
    distribution: str
    package: str
    cls: str

    @classmethod
    def of(cls, text: str) -> Self:
        """Derive the names from user input; `Fuse`, `my_fuse` and `nodeplug-fuse` are understood.

        Raises:
            InvalidRequest: the input gives no valid names, or they are taken in this environment.
        """
        name = text.strip().lower().replace("_", "-").removeprefix(_PREFIX)
        if _NAME.fullmatch(name) is None or len(name) > _LONGEST:
            raise InvalidRequest(
                f"{text!r} cannot name a plugin: take a letter and then letters, digits and single hyphens, "
                f"{_LONGEST} characters at most, such as usb-camera"
            )
        names = cls(name, _PREFIX + name, (_PREFIX + name).replace("-", "_"), _class_name(name))
        spec = find_spec(names.package)
        if spec is not None:
            raise InvalidRequest(f"there is a module {names.package} already, {spec.origin}; choose another name")
        point = installed().get(names.name)
        if point is not None:
            origin = point.dist.name if point.dist is not None else point.value
            raise InvalidRequest(f"{origin} has a plugin {names.name!r} already; choose another name")
        return names


def _class_name(name: str) -> str:
    made = "".join(part.capitalize() for part in name.split("-"))
    taken = keyword.iskeyword(made) or made in _IMPORTED or made in dir(nodeplug)
    return f"{made}Plugin" if taken else made


def write(style: str, names: Names, folder: Path) -> list[Path]:
    """Write a package of one of the STYLES into a new or empty folder; return its files, relative to it.

    Raises:
        InvalidRequest: there is no such style; or the folder is not empty, is a file, or cannot be written.
    """
    if style not in STYLES:
        raise InvalidRequest(f"there is no style {style!r}; take one of {', '.join(STYLES)}")
    made = dict(sorted(_files(style, names)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidRequest(f"{folder} is not empty; name another folder with --directory")
        for path, text in made.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise InvalidRequest(f"{folder} is a file; name a folder with --directory") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write below {folder}: {error.strerror}") from error
    return list(made)


def next_steps(names: Names, folder: Path) -> str:
    """Return the next commands, for a terminal."""
    return f"""
next, in this environment:
  cd {folder}
  pip install -e '.[test]'
  pytest                       # passes; then change src/{names.package}/__init__.py
  nodeplug try {names.name}.toml
  nodeplug verify {names.name}"""


def _files(style: str, names: Names) -> Iterator[tuple[Path, str]]:
    for room in (style, "common"):
        for source in (files(__name__) / "templates" / room).iterdir():
            text = Template(source.read_text(encoding="utf-8")).substitute(asdict(names))
            yield _place(source.name.removesuffix(_SUFFIX), names), text


def _place(name: str, names: Names) -> Path:
    places = {
        "plugin.py": Path("src", names.package, "__init__.py"),
        "test.py": Path("tests", f"test_{names.package}.py"),
        "config.toml": Path(f"{names.name}.toml"),
        "beside.toml": Path("tests", "beside.toml"),
        "network.conflist": Path(f"{names.name}.conflist"),
        "gitignore": Path(".gitignore"),
        "py.typed": Path("src", names.package, "py.typed"),
    }
    return places.get(name, Path(name))
