"""Settings of a container's network namespace below /proc/sys/net, and which of them are allowed.

Owns: reading and writing them in the calling thread's namespace, comparison, and the reference's allow-list.
Refuses: names (see `config`), and namespaces: the caller has entered one.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nodeplug import InvalidRequest, PluginError, read_bounded

_LIMIT: Final = 1 << 16


def write(path: str, value: str) -> None:
    """Write a setting.

    Raises:
        PluginError: there is none, or the kernel refuses the value; in the words of Go.
    """
    descriptor = _open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode(errors="replace"))
    except OSError as error:
        raise _refusal("write", path, error) from error
    finally:
        os.close(descriptor)


def read(path: str) -> str | None:
    """Read a setting, without the line's end; None of one that can only be written.

    Raises:
        PluginError: there is none; in the words of Go.
    """
    try:
        descriptor = _open(path, os.O_RDONLY)
    except PluginError as error:
        if isinstance(error.__cause__, PermissionError):
            return None
        raise
    try:
        return os.read(descriptor, _LIMIT).decode(errors="replace").removesuffix("\n")
    except OSError as error:
        raise _refusal("read", path, error) from error
    finally:
        os.close(descriptor)


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise _refusal("open", path, error) from error


def _refusal(what: str, path: str, error: OSError) -> PluginError:
    return PluginError(f"{what} {path}: {os.strerror(error.errno or 0).lower()}")


def differences(wanted: Mapping[str, str]) -> Iterator[str]:
    """Compare settings with what they should be, in the reference's sentences.

    Several numbers are the same whatever is between them: the kernel writes tabs where people write spaces.
    """
    for path, value in wanted.items():
        try:
            now = read(path)
        except PluginError as error:
            yield str(error)
            continue
        if now is not None and now.split() != value.split():
            yield f"Error: Tuning configured value of {path} is {value}, current value is {now}"


def check_allowed(names: Iterable[str], allowlist: Path) -> None:
    """Refuse names that no line of the allow-list matches; without that file all are allowed.

    A line is a regular expression that may match anywhere in the name as it is written in the configuration.

    Raises:
        InvalidRequest: one is not allowed.
        PluginError: the list cannot be read, or a line is no expression.
    """
    try:
        text = read_bounded(allowlist).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refusal("read" if isinstance(error, IsADirectoryError) else "open", str(allowlist), error) from error
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for name in names:
        if not any(_matches(line, name) for line in lines):
            allowed = " ".join(lines)
            raise InvalidRequest(
                f"Sysctl {name} is not allowed. Only the following sysctls are allowed: [{allowed}]",
                details=f"they are in {allowlist}",
            )


def _matches(line: str, name: str) -> bool:
    if "[:" in line:  # such as [[:alpha:]], which would mean something else here than in Go
        raise PluginError(f"error parsing regexp: classes of POSIX are not known: `{line}`")
    try:
        return re.search(line, name) is not None
    except re.error as error:
        raise PluginError(f"error parsing regexp: {error}: `{line}`") from error
