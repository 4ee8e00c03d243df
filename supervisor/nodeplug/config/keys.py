"""What keys of all tables have in common: addresses, paths, and that unknown ones are mistakes.

Owns: the forms that values of several tables have.
Refuses: tables (`models`, `cluster_tables`), and durations and sizes, which plugins have as well (`nodeplug.fields`).
"""

from pydantic import BaseModel, ConfigDict


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises:
        ValueError: it has another form; pydantic adds the key.
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and host != f"[{bare}]"):
        raise ValueError(f"{address!r} is not an address; use host:port, such as 127.0.0.1:9808 or [::1]:9808")
    return bare, int(port)


def check_address(address: str) -> str:
    """Return an address of a form that `parse_address` takes, or an empty one; raise ValueError."""
    if address:
        parse_address(address)
    return address


def check_cgroup(path: str) -> str:
    """Return the path of a cgroup, from the root of its hierarchy on, or an empty one; raise ValueError."""
    if path and (not path.startswith("/") or not path.strip("/") or ".." in path.split("/")):
        raise ValueError(f"{path!r} is no cgroup below the root of a hierarchy, such as '/nodeplug'")
    return path


def check_absolute(path: str) -> str:
    """Return an absolute path.

    Raises:
        ValueError: it is relative, or leads upwards.
    """
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"an absolute path without '..' is wanted, such as /var/lib/cni; found {path!r}")
    return path


def check_path(path: str) -> str:
    """Return an absolute path, or an empty one; raise ValueError."""
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is no absolute path; the daemon looks for it nowhere")
    return path


class Model(BaseModel):
    """A table: it does not change, and an unknown key in it is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid")
