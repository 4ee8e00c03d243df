"""A createContainer hook of its own: links between the driver's libraries, and the cache of the dynamic linker.

Owns: what `nvidia-cdi-hook create-symlinks` and `update-ldcache` do, with the same options, where a node has neither.
The text of this file stands in the CDI spec, and the node's python3 runs it without nodeplug: Python 3.7, nothing else.
Refuses: to trust the container. Every path is walked from its root without following a link out of it, and ldconfig,
which is the node's, runs where no `/proc` leads out: before pivot_root, `/proc/1/root` is the node's own root.

Source: OCI runtime specification, "Hooks" and "State"; path_resolution(7), proc(5), ldconfig(8).
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

CONFIGURATION = "00-nodeplug-gpu.conf"
LDCONFIG = ("/sbin/ldconfig.real", "/usr/sbin/ldconfig.real", "/sbin/ldconfig", "/usr/sbin/ldconfig")
"""Ubuntu's `ldconfig` is a script; the program is `ldconfig.real`."""
_MAX_LINKS = 40
_PATIENCE = 20
# In a mount namespace of its own: first cover each /proc of the container, then update the cache. ulimit bounds
# the heap, in KiB: ldconfig reads whole lines of the image's files into it. Libraries are mapped, which does not count.
_HIDDEN = """
ulimit -d 262144 || exit 1
ldconfig=$1 root=$2; shift 2
while [ "$1" != -- ]; do mount -t tmpfs -o mode=555,size=64k tmpfs "$1" || exit 1; shift; done
shift
exec "$ldconfig" -X -r "$root" "$@"
"""


class Failed(Exception):
    """The container would not find the driver; the text says why."""


def container_root(state: str) -> str:
    """Return the root of the container that a state describes."""
    bundle = json.loads(state)["bundle"]
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
        path = str(json.load(file)["root"]["path"])
    root = os.path.realpath(os.path.join(bundle, path))
    if root == "/":
        raise Failed("the container's root is the node's")
    return root


def open_folder(root: int, path: str) -> int:
    """Open a folder below a root, made where it is missing; a link leads at most to the root itself."""
    held, todo, links = [os.dup(root)], path.split("/")[::-1], 0
    try:
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if len(held) > 1:
                    os.close(held.pop())
                continue
            found = _open(held[-1], part)
            mode = os.fstat(found).st_mode
            held.append(found)
            if stat.S_ISLNK(mode):
                target = os.readlink("", dir_fd=found)
                links += 1
                if links > _MAX_LINKS:
                    raise Failed(f"{path} has too many links")
                for one in [held.pop(), *(held[1:] if target.startswith("/") else [])]:
                    os.close(one)
                del held[1 if target.startswith("/") else len(held) :]
                todo += target.split("/")[::-1]
            elif not stat.S_ISDIR(mode):
                raise Failed(f"{path}: {part} is no folder")
        return held.pop()
    finally:
        for one in held:
            os.close(one)


def _open(folder: int, name: str) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, flags, dir_fd=folder)


def make_link(root: int, target: str, path: str) -> None:
    """Make a link, in the place of whatever file or link is there."""
    parent, _, name = path.rpartition("/")
    folder = open_folder(root, parent)
    try:
        if _target(folder, name) != target:
            temporary = f".{name}.{os.getpid()}"
            os.symlink(target, temporary, dir_fd=folder)
            _replace(folder, temporary, name)
    finally:
        os.close(folder)


def _target(folder: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def write_file(root: int, parent: str, name: str, text: str, *, replace: bool = True) -> None:
    """Write a file in one step; a link in its place is replaced, never followed."""
    folder = open_folder(root, parent)
    try:
        if not replace and _exists(folder, name):
            return
        temporary = f".{name}.{os.getpid()}"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
        with os.fdopen(file, "w") as opened:
            os.fchmod(file, 0o644)
            opened.write(text)
        _replace(folder, temporary, name)
    finally:
        os.close(folder)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _replace(folder: int, temporary: str, name: str) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(temporary, dir_fd=folder)
        raise


def update_cache(root: str, folders: list[str]) -> None:
    """Run the node's ldconfig in a container's root."""
    program = next((one for one in LDCONFIG if os.access(one, os.X_OK)), None)
    if program is None:
        raise Failed("the node has no ldconfig")
    command = ["unshare", "--mount", "sh", "-c", _HIDDEN, "sh", program, root, *_proc(root), "--", *folders]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = "a file below /etc/ld.so.conf.d may be no regular file; remove it from the image"
        raise Failed(f"ldconfig in its root did not end within {_PATIENCE} s: {why}") from None
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()[-1000:]
        raise Failed(f"ldconfig in its root failed with {done.returncode}: {said}")


def _proc(root: str) -> list[str]:
    """Return where procfs is mounted below a root."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split(" - ", 1) for line in file]
    points = [before.split(" ")[4] for before, after in lines if after.split(" ", 1)[0] == "proc"]
    return [point for point in (one.replace("\\040", " ") for one in points) if point.startswith(f"{root}/")]


def main(arguments: list[str]) -> int:
    """Do as the arguments say: `--link TARGET::PATH` and `--folder PATH`, each as often as needed."""
    try:
        options = list(zip(arguments[::2], arguments[1::2]))
        path = container_root(sys.stdin.read())
        root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for link in [value for name, value in options if name == "--link"]:
            target, _, place = link.partition("::")
            make_link(root, target, place)
        folders = [value for name, value in options if name == "--folder"]
        if folders:
            write_file(root, "/etc", "ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n", replace=False)
            write_file(root, "/etc/ld.so.conf.d", CONFIGURATION, "".join(one + "\n" for one in folders))
            update_cache(path, folders)
    except (Failed, OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"nodeplug's CDI hook: the libraries of the GPU driver cannot be set up: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
