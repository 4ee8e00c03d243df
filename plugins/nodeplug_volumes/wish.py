"""What the options of one loopfile volume ask for.

Owns: their names, and what each may be.
Refuses: what is there already (`loopfile`), and parameters of a StorageClass (`store`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nodeplug import InvalidRequest
from nodeplug.fields import parse_quantity
from nodeplug.fields import show_quantity as show
from nodeplug_volumes.filesystem import FS_TYPES, FsType
from nodeplug_volumes.image_folder import NAME
from nodeplug_volumes.store import BLOCK, SMALLEST


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of one volume."""

    name: str
    size: int | None
    fs_type: FsType | None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What volumes of this node may ask for.

    Attributes:
        max_size: bytes of the largest; None: no limit.
    """

    max_size: int | None = None

    def read(self, options: Mapping[str, str], kubelet_fs_type: str = "") -> Wish:
        """Read the options of a volume.

        Args:
            options: of the volume.
            kubelet_fs_type: what kubelet says beside them; the option comes first.

        Raises:
            InvalidRequest: one is unknown, missing, or has a value that is not allowed.
        """
        unknown = sorted(set(options) - {"name", "size", "fsType"})
        if unknown:
            raise InvalidRequest(f"loopfile has no option {', '.join(map(repr, unknown))}; it has name, size, fsType")
        name = options.get("name", "")
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"option name is {name[:140]!r}; it must be 1 to 128 letters, digits, '.', '_', '-', starting with one "
                "of the first two"
            )
        asked = options.get("fsType") or kubelet_fs_type
        fs_type = next((known for known in FS_TYPES if known == asked), None)
        if asked and fs_type is None:
            raise InvalidRequest(
                f"volume {name!r} asks for fsType {asked[:40]!r}; loopfile makes {', '.join(FS_TYPES)}"
            )
        text = options.get("size", "")
        return Wish(name, self.allowed(name, parse_quantity(text)) if text else None, fs_type)

    def allowed(self, name: str, size: int) -> int:
        """Return a size in whole blocks; InvalidRequest if no volume here may have it."""
        if size < SMALLEST:
            raise InvalidRequest(f"volume {name!r} asks for {show(size)}; the smallest is {show(SMALLEST)}")
        if self.max_size is not None and size > self.max_size:
            raise InvalidRequest(
                f"volume {name!r} asks for {show(size)}; this node allows at most {show(self.max_size)}"
            )
        return -(-size // BLOCK) * BLOCK
