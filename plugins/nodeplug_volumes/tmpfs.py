"""tmpfs: memory as a volume, with a size limit.

Owns: one tmpfs per pod with a size, a mode and the pod's group.
Refuses: to share (two pods never see one tmpfs), and mounts without a limit: the content of a tmpfs counts towards the
pod's memory, and without a limit it could use half of the node's.

Options: `size` (such as "64Mi"), `mode` (octal; default 1777, or 2770 for a pod with an fsGroup), `noswap` ("true"),
`huge` ("never", "always", "within_size", "advise"; tmpfs(5)).
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import (
    Claim,
    Example,
    Host,
    InvalidRequest,
    PluginError,
    VolumeClaim,
    VolumePublish,
    hookimpl,
    mount,
    mounted_at,
)
from nodeplug.fields import FlexDriver, Quantity, parse_quantity
from nodeplug.fields import show_quantity as show

Huge = Literal["never", "always", "within_size", "advise"]
"""When the kernel uses huge pages (Documentation/admin-guide/mm/transhuge.rst, "Hugepages in tmpfs/shmem")."""
_OPTIONS: Final = ("size", "mode", "noswap", "huge")
_MODE: Final = re.compile(r"0?[0-7]{3,4}")
_PAGE: Final = 4096
_FEWEST_INODES: Final = 64


class TmpfsConfig(BaseModel):
    """`[plugins.tmpfs.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/tmpfs", description="the FlexVolume driver's name, vendor/driver")
    default_size: Quantity | None = Field(None, ge=_PAGE, description="the size of a volume that requests none")
    max_size: Quantity | None = Field(
        None, ge=_PAGE, description="the largest volume; without it, half of the node's memory, as tmpfs(5) has it"
    )
    noexec: bool = Field(default=True, description="pods cannot execute files of the volume")
    noswap: bool = Field(
        default=False,
        description="keep every volume out of swap, whatever its pod asks for; needs Linux 6.4",
    )
    huge: Huge = Field(
        "never", description="when a volume that asks for nothing has huge pages: they save time, and cost memory"
    )


class Tmpfs:
    """The plugin."""

    Config = TmpfsConfig
    isolation = "thread"
    example: ClassVar[Example] = {"volume_options": {"size": "4Mi"}}

    def __init__(self, config: TmpfsConfig, host: Host) -> None:
        self._config = config
        self._log = host.log

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """One driver; the group is set by the mount, so kubelet need not walk the tree."""
        return [VolumeClaim(self._config.driver, fs_group="driver", inline=True)]

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Mount a tmpfs for the pod."""
        options = self._mount_options(request.options, request.fs_group)
        if mounted_at(request.target_path) is not None:
            return
        flags = (*request.mount_flags, *options)  # the latter win: pods cannot change them
        try:
            mount("tmpfs", request.target_path, "tmpfs", options=flags, read_only=request.read_only)
        except PluginError as error:
            raise _explain(error, options) from error

    def _mount_options(self, options: Mapping[str, str], group: int | None) -> list[str]:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise InvalidRequest(f"tmpfs has no option {', '.join(map(repr, unknown))}; it has {', '.join(_OPTIONS)}")
        size = self._size(options)
        mode = options.get("mode") or ("1777" if group is None else "2770")
        if not _MODE.fullmatch(mode):
            raise InvalidRequest(f"option mode is {mode[:40]!r}; it must be octal, such as 0750")
        # Empty files cost kernel memory that `size` does not count.
        inodes = max(size // _PAGE, _FEWEST_INODES)
        words = ["nosuid", "nodev", f"size={size}", f"mode={mode}", f"nr_inodes={inodes}"]
        words += ["noexec"] if self._config.noexec else []
        words += ["noswap"] if self._noswap(options) else []
        words += [f"huge={huge}"] if (huge := self._huge(options)) != "never" else []
        return words + ([] if group is None else [f"gid={group}"])

    def _noswap(self, options: Mapping[str, str]) -> bool:
        text = options.get("noswap", "false")
        if text not in {"true", "false"}:
            raise InvalidRequest(f"option noswap is {text[:40]!r}; it must be 'true' or 'false'")
        return text == "true" or self._config.noswap

    def _huge(self, options: Mapping[str, str]) -> str:
        text = options.get("huge", self._config.huge)
        if text not in get_args(Huge):
            raise InvalidRequest(f"option huge is {text[:40]!r}; it must be one of {', '.join(get_args(Huge))}")
        return text

    def _size(self, options: Mapping[str, str]) -> int:
        text = options.get("size", "")
        size = parse_quantity(text) if text else self._config.default_size
        if size is None:
            raise InvalidRequest("a tmpfs needs a size; set the option size, such as 64Mi")
        if size < _PAGE:  # for the kernel size=0 means "no limit"
            raise InvalidRequest(f"option size is {show(size)}; the smallest tmpfs is {show(_PAGE)}")
        most = self._config.max_size or _half_of_memory()
        if size > most:
            raise InvalidRequest(f"option size is {show(size)}; this node allows at most {show(most)}")
        return size


def _half_of_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _explain(error: PluginError, options: Sequence[str]) -> PluginError:
    """Say what an option needs that not every kernel has; the kernel itself says only that it refuses."""
    needs = ["noswap needs Linux 6.4, and root outside of user namespaces"] if "noswap" in options else []
    if any(option.startswith("huge=") for option in options):
        needs.append("huge needs a kernel with transparent huge pages")
    if not needs:
        return error
    return PluginError(f"{error.message}; {'; '.join(needs)}: this is Linux {os.uname().release}")
