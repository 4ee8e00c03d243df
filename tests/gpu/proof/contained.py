"""Executes a command in a container by hand: `python -I contained.py PLACE COMMAND...`, PLACE being JSON.

Owns: a mount namespace with a root that is the node's own, copied on write, without what is to be hidden; in it what a
CDI spec wants, in the order of a runtime: device nodes, mounts, createContainer hooks, the new root, the environment.
Refuses: other namespaces, and imports of ours: it runs with the bare interpreter.

PLACE has `folder` (empty, for the layers and the root), `hide` (paths), `nodes` and `mounts` (pairs: on the node, in
the container), `hooks` (as in the spec) and `env`.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS = 0x00020000  # sched.h, CLONE_NEWNS
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18  # linux/mount.h
ALWAYS = ("null", "zero", "full", "random", "urandom", "tty")


def mount(source: str, target: Path, flags: int, kind: str = "", data: str = "") -> None:
    words = [os.fsencode(text) for text in (source, str(target), kind)]
    if LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) if data else None):
        raise SystemExit(f"{kind or source} cannot be mounted on {target}: {os.strerror(ctypes.get_errno())}")


def bind(source: str, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a link that leads nowhere
        if Path(source).is_dir():
            target.mkdir()
        else:
            target.touch()
    mount(source, target, BIND | RECURSIVE)


def make_root(folder: Path, hidden: list[str]) -> Path:
    """Make the root: the node's own file system under a layer in memory."""
    layers, root = folder / "layers", folder / "root"
    for one in (layers, root):
        one.mkdir()
    mount("layers", layers, 0, "tmpfs")
    upper, work = layers / "upper", layers / "work"
    for one in (upper, work):
        one.mkdir()
    mount("overlay", root, 0, "overlay", f"lowerdir=/,upperdir={upper},workdir={work}")
    for path in hidden:
        inside = root / path.lstrip("/")
        if inside.is_dir() and not inside.is_symlink():
            mount("hidden", inside, 0, "tmpfs")
        else:
            inside.unlink(missing_ok=True)
    for name in ("proc", "sys"):
        bind(f"/{name}", root / name)
    mount("dev", root / "dev", 0, "tmpfs")
    for name in ALWAYS:
        if Path(f"/dev/{name}").exists():
            bind(f"/dev/{name}", root / "dev" / name)
    return root


def run_hooks(hooks: list[dict[str, Any]], folder: Path, root: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"root": {"path": str(root)}}))
    state = json.dumps({"ociVersion": "1.0.2", "id": "proof", "status": "creating", "pid": 0, "bundle": str(folder)})
    for hook in hooks:
        env = dict(word.split("=", 1) for word in hook.get("env", ()))
        words = hook.get("args") or [hook["path"]]
        done = subprocess.run(
            words, executable=hook["path"], env=env, input=state, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the hook {hook['path']} ended with {done.returncode}: {done.stderr.strip()[-400:]}")


def main() -> None:
    place, command = json.loads(sys.argv[1]), sys.argv[2:]
    if LIBC.unshare(NEW_MOUNTS):
        raise SystemExit(f"a mount namespace: {os.strerror(ctypes.get_errno())}")
    mount("", Path("/"), PRIVATE | RECURSIVE)
    folder = Path(place["folder"])
    root = make_root(folder, place["hide"])
    for source, target in (*place["nodes"], *place["mounts"]):
        bind(source, root / target.lstrip("/"))
    run_hooks(place["hooks"], folder, root)
    env = {**os.environ, **place["env"]}
    os.chroot(root)
    os.chdir("/")
    os.execve(shutil.which(command[0]) or command[0], command, env)


if __name__ == "__main__":
    main()
