"""A folder of a node as text that a reader can look at: written from a folder, and laid down in another one.

Owns: the form of a recorded tree. `tree.txt` has a line for each entry: its mode and its path, with `/` behind a
folder, `=` behind a socket, and ` == PATH` behind a file with the contents of another. Regular files lie beside it
under the same paths; one that is no plain text has `.escaped` behind its name: escapes as in Python, and line breaks
that mean nothing. What differs between machines is a placeholder, `@NAME@`, in contents and in names; `@NAME:hex@` is
the same in hexadecimal digits (code of the entrypoints), and `@SHA256:path@` the digest of a file as it is laid down.
`kernel.json` says what of the node was in the kernel.
Refuses: to know what any of the files means, and roots of another length than the recorded one, which is in frames.
"""

import hashlib
import json
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

FIXTURES: Final = Path(__file__).parent
ROOT_LENGTH: Final = len("/tmp/np-12345678")
INDEX: Final = "tree.txt"
KERNEL: Final = "kernel.json"
_SAME: Final = " == "
_LONG: Final = 1000
"""Bytes from which on equal files are written once."""
_ESCAPED: Final = ".escaped"
_DIGEST: Final = re.compile(rb"@SHA256:([^@]+)@")
_LEFT: Final = re.compile(r"@[A-Z0-9_]+(?::[a-z0-9]+)?@")


def versions() -> list[str]:
    """Name the versions whose state is recorded."""
    return sorted(path.name for path in FIXTURES.iterdir() if (path / "network" / INDEX).exists())


def read_kernel(recorded: Path, values: Mapping[str, str]) -> Any:
    """Return what was in the kernel."""
    return json.loads(_filled((recorded / KERNEL).read_text(encoding="utf-8"), values))


def placeholders(recorded: Path) -> set[str]:
    """Name every placeholder of a recorded tree, but for the root and digests."""
    texts = [path.read_text(encoding="utf-8") for path in recorded.rglob("*") if path.is_file()]
    return {name.strip("@") for text in texts for name in _LEFT.findall(text)} - {"ROOT", "ROOT:hex"}


# --- writing


def save(root: Path, into: Path, known: Mapping[str, str], left_out: re.Pattern[str]) -> None:
    """Write what lies in a folder, in which nothing is mounted.

    Args:
        root: the folder.
        into: where the text goes; it is made.
        known: placeholders by the text that they stand for.
        left_out: whole paths of what is not written.
    """
    into.mkdir(parents=True)
    paths = [path for path in sorted(root.rglob("*")) if not left_out.fullmatch(str(path.relative_to(root)))]
    lines: list[str] = []
    first: dict[bytes, str] = {}
    for path in paths:
        line = _save_one(path, root, into, known)
        data = path.read_bytes() if path.is_file() and path.stat().st_size > _LONG else b""
        same = first.setdefault(data, line.partition(" ")[2])
        if data and same != line.partition(" ")[2]:
            (into / line.partition(" ")[2]).unlink()
            line += f"{_SAME}{same}"
        lines.append(f"{line}\n")
    (into / INDEX).write_text("".join(lines), encoding="utf-8")


def _save_one(path: Path, root: Path, into: Path, known: Mapping[str, str]) -> str:
    status = path.lstat()
    name = str(path.relative_to(root))
    for text, placeholder in known.items():
        name = name.replace(quote(text, safe="=@+,"), placeholder)
    line = f"{stat.S_IMODE(status.st_mode):04o} {name}"
    if stat.S_ISDIR(status.st_mode):
        return f"{line}/"
    if stat.S_ISSOCK(status.st_mode):
        return f"{line}="
    data = path.read_bytes()
    for text, placeholder in known.items():
        data = data.replace(text.encode(), placeholder.encode())
        data = data.replace(text.encode().hex().encode(), f"{placeholder[:-1]}:hex@".encode())
    target = into / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if _is_plain(data):
        target.write_bytes(data)
    else:
        target.with_name(target.name + _ESCAPED).write_text(_escape(data), encoding="ascii")
    return line


def _is_plain(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(char == "\n" or char.isprintable() for char in text)


def _escape(data: bytes) -> str:
    text = data.decode("latin-1").encode("unicode_escape").decode("ascii")
    return re.sub(r"((?:\\x00)+|\\n)", "\\1\n", text)


def _unescape(text: str) -> bytes:
    return text.replace("\n", "").encode("ascii").decode("unicode_escape").encode("latin-1")


# --- laying down


def lay(recorded: Path, root: Path, values: Mapping[str, str]) -> None:
    """Lay a recorded tree down in an empty folder.

    Args:
        recorded: the tree.
        root: the folder, whose path is as long as the recorded one.
        values: by the names of placeholders.

    Raises:
        ValueError: a placeholder is not filled, or the root is too long or too short.
    """
    if len(str(root)) != ROOT_LENGTH:
        raise ValueError(f"{root} has not the {ROOT_LENGTH} characters that lengths in the recorded frames count on")
    values = {"ROOT": str(root), **values}
    with_digests = []
    for mode, line in _index(recorded):
        name, _, same = line.partition(_SAME)
        path = root / _filled(name.rstrip("/="), values, quoted=True)
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        elif name.endswith("="):
            _leave_socket(path)
        else:
            data = _bytes_of(recorded / (same or name), values)
            path.write_bytes(data)
            if _DIGEST.search(data):
                with_digests.append(path)
        path.chmod(mode)
    for path in with_digests:
        path.write_bytes(_DIGEST.sub(lambda found: _digest_of(root / found[1].decode()), path.read_bytes()))


def contents(recorded: Path, values: Mapping[str, str]) -> dict[str, bytes]:
    """Return each recorded file by its path, filled; digests stay as they are."""
    values = {"ROOT": "/" + "r" * (ROOT_LENGTH - 1), **values}
    names = [name for _, name in _index(recorded) if name[-1] not in "/=" and _SAME not in name]
    return {_filled(name, values, quoted=True): _bytes_of(recorded / name, values) for name in names}


def _index(recorded: Path) -> Iterator[tuple[int, str]]:
    for line in (recorded / INDEX).read_text(encoding="utf-8").splitlines():
        mode, _, name = line.partition(" ")
        yield int(mode, 8), name


def _bytes_of(path: Path, values: Mapping[str, str]) -> bytes:
    escaped = path.with_name(path.name + _ESCAPED)
    if escaped.exists():
        data = _unescape(escaped.read_text(encoding="ascii"))
        return _filled(data.decode("latin-1"), values).encode("latin-1")
    return _filled(path.read_text(encoding="utf-8"), values).encode()


def _filled(text: str, values: Mapping[str, str], *, quoted: bool = False) -> str:
    for name, value in values.items():
        text = text.replace(f"@{name}@", quote(value, safe="=@+,") if quoted else value)
        text = text.replace(f"@{name}:hex@", value.encode().hex())
    left = _LEFT.findall(text)
    if left:
        raise ValueError(f"nothing is given for {', '.join(sorted(set(left)))}")
    return text


def _leave_socket(path: Path) -> None:
    """Leave the socket of a program that was killed: it is there, and nobody listens."""
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))


def _digest_of(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode()


def entries(folder: Path) -> list[str]:
    """Name the files below a folder, whatever they are; none when it is not there."""
    return sorted(str(Path(base, name).relative_to(folder)) for base, _, names in os.walk(folder) for name in names)
