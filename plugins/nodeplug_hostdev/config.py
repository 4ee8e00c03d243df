"""The configuration of device nodes.

Owns: the shape of `[plugins.hostdev.config]` and the rules that can be checked without looking at the node.
Refuses: to look at the node, and resource names (the host checks every claim).
"""

from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nodeplug.fields import ExtendedResource


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _absolute(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or ".." in parts or path.endswith("/"):
        raise ValueError("must be an absolute path without '..' and without '/' at the end")
    return path


def _glob(path: str) -> str:
    if "**" in _absolute(path):
        raise ValueError("'**' is not supported; write one '*' per level, such as /dev/bus/usb/*/*")
    return path


def _permissions(letters: str) -> str:
    if not letters or set(letters) - set("rwm") or len(set(letters)) != len(letters):
        raise ValueError("must be one or more of 'r' (read), 'w' (write) and 'm' (mknod), such as 'rw'")
    return letters


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class Node(_Model):
    """Device nodes that one glob matches."""

    path: Annotated[str, AfterValidator(_glob)] = Field(description="Absolute path or glob: * ? [abc], per level.")
    container_path: AbsolutePath | Literal[""] = Field(
        "", description="Path in the container; '{name}' stands for the node's own name. Empty: as on the host."
    )
    permissions: Annotated[str, AfterValidator(_permissions)] = Field("rw", description="Any of r, w, m.")
    probe: Literal["open", "exists"] = Field(
        "open",
        description="What makes it healthy. Terminals, watchdogs and tapes are never opened: that has side effects.",
    )
    optional: bool = Field(False, description="The node may be missing; never the first of a group.")


class Group(_Model):
    """Each match of the first node is one device; the others come with it."""

    nodes: tuple[Node, ...] = Field(min_length=1, description="The node to share, then its companions.")
    count: int = Field(1, ge=1, le=1000, description="How many containers may share one device.")
    limit: int | None = Field(None, ge=1, description="The most devices of this group; the first in natural order.")

    @model_validator(mode="after")
    def _first_is_required(self) -> Self:
        if self.nodes[0].optional:
            raise ValueError("the first node of a group is the device itself: it cannot be optional")
        return self


class HostMount(_Model):
    """A host path that every container of the resource gets."""

    host_path: AbsolutePath = Field(description="A path of the host; while it does not exist, no device is healthy.")
    container_path: AbsolutePath = Field(description="Where the container finds it.")
    read_only: bool = Field(True, description="The container cannot write to it.")


class Resource(_Model):
    """One extended resource."""

    resource: ExtendedResource = Field(description="Such as example.com/fuse.")
    groups: tuple[Group, ...] = Field(min_length=1, description="A path in two groups belongs to the first.")
    mounts: tuple[HostMount, ...] = Field((), description="Host paths that each container of the resource gets.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables that each container of the resource gets.")


class HostDevConfig(_Model):
    """`[plugins.hostdev.config]`."""

    resources: tuple[Resource, ...] = Field(min_length=1, description="One entry per extended resource.")
    watch: bool = Field(True, description="Detect new nodes by inotify; otherwise only by the daemon's poll.")

    @model_validator(mode="after")
    def _one_entry_per_resource(self) -> Self:
        names = [entry.resource for entry in self.resources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: more than one entry; write several groups in one entry")
        return self
