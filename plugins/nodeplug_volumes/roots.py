"""Folders of the node that an administrator allows by name, and how a volume's options choose one.

Owns: what a root may be, whether its disk is there, and the words for a volume that names none of them.
Refuses: what lies below a root (`beneath`).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from nodeplug import InvalidRequest, NotReady
from nodeplug_volumes import beneath
from nodeplug_volumes.fstab import missing_mount

_Root = TypeVar("_Root")


def _absolute(path: Path) -> Path:
    if not path.is_absolute() or path == Path("/"):
        raise ValueError("a root must be an absolute path, and not the whole filesystem")
    return path


RootPath = Annotated[Path, AfterValidator(_absolute)]
"""Where a root is: absolute, and not the whole filesystem."""


def chosen(options: Mapping[str, str], roots: Mapping[str, _Root]) -> tuple[str, _Root]:
    """Return the root that the option `root` names, with its name; the only one needs not be named.

    Raises:
        InvalidRequest: there is none of that name; the message has those that are allowed.
    """
    name = options.get("root", "")
    if not name and len(roots) == 1:
        name = next(iter(roots))
    if name not in roots:
        raise InvalidRequest(f"option root is {name[:80]!r}; this node allows: {', '.join(sorted(roots))}")
    return name, roots[name]


def away(path: Path) -> str:
    """Say why a root is not there; empty if it is.

    A mount point without its disk is none, whatever lies below it: what is made there would be on the node's own disk,
    and hidden by the disk that comes.
    """
    if not path.is_dir():
        return f"{path} is missing"
    place = missing_mount(path)
    return "" if place is None else f"fstab has a disk at {place}, and nothing is mounted there"


def check(found: Iterable[tuple[str, Path]]) -> None:
    """Check that all roots are there.

    Args:
        found: their names and paths.

    Raises:
        NotReady: some are not.
    """
    missing = [f"{name} ({why})" for name, path in found if (why := away(path))]
    if missing:
        raise NotReady(f"roots are missing: {', '.join(missing)}; are their disks mounted?")


def opened(path: Path) -> int:
    """Open a root of the configuration; here symlinks are the administrator's choice.

    Returns:
        A descriptor that the caller closes.

    Raises:
        NotReady: it is not there.
    """
    if why := away(path):
        raise NotReady(f"the root {path} cannot be used: {why}; is its disk mounted?")
    return beneath.open_root(str(path))
