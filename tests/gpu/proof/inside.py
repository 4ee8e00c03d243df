"""Executes a command where a container would have it: `python -I inside.py PLACE COMMAND...`, PLACE being JSON.

Owns: in this order cgroups (`cgroups`, files of processes), a mount namespace with bind mounts (`mounts`: source,
target, read-only), and a user (`user`). What is not named stays as it is.
Refuses: imports of ours: it runs with the bare interpreter.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS = 0x00020000  # sched.h, CLONE_NEWNS
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 32, 4096, 16384, 1 << 18  # linux/mount.h


def check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise SystemExit(f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, flags: int, kind: str = "") -> None:
    words = [os.fsencode(text) for text in (source, target, kind)]
    check(LIBC.mount(*words, ctypes.c_ulong(flags), None), f"mount {source} on {target}")


def bind(source: str, target: str, read_only: bool) -> None:
    place = Path(target)
    if not os.path.lexists(target):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(exist_ok=True) if Path(source).is_dir() else place.touch()
    mount(source, target, BIND | RECURSIVE)
    if read_only:
        mount("", target, BIND | REMOUNT | READ_ONLY)


def main() -> None:
    place, *command = sys.argv[1:]
    place = json.loads(place)
    for file in place.get("cgroups", ()):
        Path(file).write_text("0")
    if "mounts" in place:
        check(LIBC.unshare(NEW_MOUNTS), "a mount namespace")
        mount("", "/", PRIVATE | RECURSIVE)
        for source, target, read_only in place["mounts"]:
            bind(source, target, read_only)
    if "user" in place:
        os.setgroups([])
        os.setgid(place["user"])
        os.setuid(place["user"])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
