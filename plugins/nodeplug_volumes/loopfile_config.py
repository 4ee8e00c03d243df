"""The configuration of loopfile.

Owns: its keys, and what each may be.
Refuses: the options of volumes (`loopfile`), which are their users'.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nodeplug.fields import FlexDriver, Quantity
from nodeplug_volumes.filesystem import FsType
from nodeplug_volumes.store import SMALLEST


class LoopFileConfig(BaseModel):
    """`[plugins.loopfile.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/loopfile", description="the FlexVolume driver's name, vendor/driver")
    directory: Path | None = Field(
        None, description="where the images are; by default in the plugin's own folder below the state folder"
    )
    default_size: Quantity | None = Field(None, ge=SMALLEST, description="the size of a volume that requests none")
    max_size: Quantity | None = Field(None, ge=SMALLEST, description="the largest volume allowed")
    max_total: Quantity | None = Field(None, ge=SMALLEST, description="the most that all volumes may have together")
    overcommit: float = Field(
        1.0, ge=1.0, le=1000.0, description="how many bytes may be promised for each byte that the disk can hold"
    )
    fs_type: FsType = Field("ext4", description="the filesystem of a new volume that requests none")
    preallocate: bool = Field(
        default=False, description="reserve the whole size on disk; otherwise images are sparse until they are written"
    )
    mount_options: tuple[str, ...] = Field(
        ("nosuid", "nodev"), description="options of every mount; pods cannot change them"
    )
