"""mount(8) with a time limit, and the ways out of a mount whose server does not answer.

Owns: the process of mount(8), which is killed when it takes too long, and left behind if even that has no effect; binds
and unmounts that hold no caller.
Refuses: to touch a mount from this process other than by umount2(2): a server that is gone would hold the thread.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from nodeplug import NotReady, PluginError, TryAgain, mounted_at, mounts, unmount
from nodeplug_volumes.responding import Silent, look, within

LOOK_TIMEOUT: Final = 5.0
BIND_TIMEOUT: Final = 10.0
_UNMOUNT: Final = 20.0
_KILLED: Final = 2.0
_TAIL: Final = 500
_FORCE: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_STUCK: Final[dict[str, subprocess.Popen[bytes]]] = {}
"""Programs that no signal ends, by target: a second one would hang with the first."""
_LOCK: Final = threading.Lock()
_KEPT: Final = {"nosuid": 2, "nodev": 4, "noexec": 8}
"""What a bind has from the mount below it, and a remount has to repeat (linux/mount.h)."""
_BIND: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
source, target, flags = sys.argv[1:]
def call(source, flags):
    if libc.mount(source, os.fsencode(target), None, ctypes.c_ulong(flags), None):
        raise SystemExit(os.strerror(ctypes.get_errno()))
call(os.fsencode(source), 4096)
if int(flags):
    call(None, 4096 | 32 | int(flags))
"""


def run(command: Sequence[str], target: str, patience: float, environment: Mapping[str, str]) -> None:
    """Run a program that mounts something.

    Args:
        command: the program and its arguments.
        target: where it mounts.
        patience: seconds; then it is killed with all that it has started.
        environment: of the program.

    Raises:
        TryAgain: an earlier one for this target hangs in the kernel.
        NotReady: it took too long, or is not installed.
        PluginError: it failed; the message has what it printed.
    """
    with _LOCK:
        former = _STUCK.get(target)
        if former is not None and former.poll() is None:
            raise TryAgain(f"an earlier {command[0]} still hangs in the kernel (process {former.pid}); see its server")
        _STUCK.pop(target, None)
    output = os.memfd_create("output", os.MFD_CLOEXEC)  # a pipe would wait for whatever inherits it
    try:
        status = _wait(_start(command, output, environment), target, patience)
        said = "; ".join(os.pread(output, _TAIL, 0).decode(errors="replace").split("\n")).strip("; ")
    finally:
        os.close(output)
    if status is None:
        said = f": {said}" if said else ""
        raise NotReady(f"{command[0]} did not end within {patience:g} s and was killed{said}; see the server")
    if status:
        raise PluginError(f"{command[0]} failed with status {status}: {said}")


def _start(command: Sequence[str], output: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise NotReady(f"{command[0]} cannot be executed: {error.strerror}; install it on this node") from error


def _wait(child: subprocess.Popen[bytes], target: str, patience: float) -> int | None:
    """Return the status of a program; None if it was killed."""
    try:
        return child.wait(patience)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(_KILLED)
    except subprocess.TimeoutExpired:
        with _LOCK:
            _STUCK[target] = child
    return None


def bind(source: str, target: str, *, read_only: bool) -> None:
    """Bind a mount whose server may go away meanwhile: by a process that can be killed, so that it never comes late.

    Raises:
        PluginError: the kernel refused, or the server did not answer.
    """
    found = mounted_at(source)
    kept = sum(flag for name, flag in _KEPT.items() if found is not None and name in found.options)
    command = [sys.executable, "-IS", "-c", _BIND, source, target, str(kept | 1 if read_only else 0)]
    try:
        run(command, target, BIND_TIMEOUT, {})
    except PluginError as error:
        raise PluginError(f"cannot bind {source!r} on {target!r}: {error.message}") from error


def answers(path: str) -> bool:
    """Whether the server of a mount answers, be it with an error."""
    try:
        look(path, LOOK_TIMEOUT)
    except Silent:
        return False
    except OSError:
        return True
    return True


def detach(path: str, *, last: bool) -> None:
    """Unmount, whatever the server does.

    Args:
        path: the mount point.
        last: no pod has the filesystem any more: requests that wait for the server may fail.

    Raises:
        TryAgain: it is in use, and its server answers.
    """
    found = mounted_at(path)
    if found is None:
        return
    # The kernel gives mounts of one export one superblock: force would end what waits at the others, too.
    alone = sum(one.device == found.device for one in mounts()) == 1
    # What waits for the server, such as a process of the pod, ends with an error.
    if last and alone and not answers(path):
        within(_UNMOUNT, lambda: _LIBC.umount2(os.fsencode(path), _FORCE))
    try:
        if within(_UNMOUNT, lambda: unmount(path)):
            return
    except TryAgain:
        if answers(path):
            raise
    if not within(_UNMOUNT, lambda: unmount(path, lazy=True)) and mounted_at(path) is not None:
        raise PluginError(f"cannot unmount {path!r}: the kernel does not come back from it; see its server")
