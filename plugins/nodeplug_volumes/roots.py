"""Folders of the node that an administrator allows by name, and how a volume's options choose one.

Owns: what a root may be, and the words for a volume that names none of them.
Refuses: what lies below a root (`beneath`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from nodeplug import InvalidRequest

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
