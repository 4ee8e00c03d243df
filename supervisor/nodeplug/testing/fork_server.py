"""A process that has imported the daemon, and forks one on request.

Owns: importing once what each daemon of a test imports, forking, entering the namespaces, environment and streams
that are asked for, and reporting exit statuses.
Refuses: everything else: the fork runs the same `nodeplug serve` that `python -m nodeplug` would.

Run as a file, by `forked`, with the `PYTHONPATH` from which it imports as its argument; each child has its own.
Requests come on stdin, replies go to stdout, one line of JSON each. There is no second thread and gRPC has not been
used yet, which makes forking safe here and nowhere else in this project.
"""

import atexit
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

_PRELOADED: Final = (
    "nodeplug.cli",
    "nodeplug.daemon",
    # Modules that a daemon imports lazily, for a section or a plugin.
    "nodeplug.contract.crossing",
    "nodeplug.contract.network_config",
    "nodeplug.dra.drivers",
    "nodeplug.extender.listener",
    "nodeplug.networks.followed",
    "nodeplug.networks.publishing",
    "encodings.ascii",
    "encodings.idna",
    "grpc._utilities",
    "pydantic.dataclasses",
    "pyroute2",
)
_NAMESPACES: Final = {"net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}  # CLONE_NEWNET, NEWUTS, NEWNS
_WORKERS: Final = Path(__file__).with_name("forked_workers.py")
_SEARCHED: Final = tuple(sys.path)
"""The module search path of this interpreter, without `PYTHONPATH`."""


def main() -> None:
    """Serve until stdin ends; in each child, become what was ordered."""
    _search(sys.argv[1])
    _load(_PRELOADED)
    workers = _load_workers()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end what they started
    order = _serve()
    if order is not None:
        _become(order, workers)


def _load_workers() -> Any:
    spec = importlib.util.spec_from_file_location("forked_workers", _WORKERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ready()
    return module


def _load(names: Iterable[str]) -> None:
    gc.disable()  # as `nodeplug serve` does
    try:
        for name in names:
            __import__(name)
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()  # a garbage collection in a child would copy all that was imported


def _load_imports_of(target: str, search: str) -> None:
    """Import a module's dependencies but not the module: each child runs the module itself as `__main__`."""
    path = list(sys.path)
    _search(search)
    _load([target])
    del sys.modules[target]
    sys.path[:] = path


def _load_present(names: Iterable[str]) -> None:
    """Import the modules that can be imported; the child reports the others."""
    for name in names:
        with suppress(Exception):
            _load([name])


def _serve() -> dict[str, Any] | None:
    """Answer orders; return one in each child, and None at the end."""
    running: set[int] = set()
    loaded: set[str] = set()
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            running.discard(order["wait"])
            _answer({"status": os.waitstatus_to_exitcode(status)})
            continue
        if order["repeated"] and order["target"] not in loaded:
            _load_imports_of(order["target"], order["env"].get("PYTHONPATH", ""))
            loaded.add(order["target"])
        if missing := [name for name in order["imports"] if name not in loaded]:
            loaded.update(missing)
            _load_present(missing)
        try:  # before the answer: the thread that asks, whose namespaces these are, may end with it
            order |= _surroundings(order["task"])
        except OSError as error:
            _answer({"error": f"the process beside which to start another one has ended: {error}"})
            continue
        child = os.fork()  # noqa: TID251 - see the first lines
        if child == 0:
            return dict(order)
        for descriptor in (order["root"], *(one for one, _ in order["namespaces"])):
            os.close(descriptor)
        running.add(child)
        _answer({"pid": child})
    for child in running:  # the caller has gone without ending them
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    return None


def _surroundings(task: str) -> dict[str, Any]:
    """Open the namespaces and the root directory of a thread or process, given by its folder in /proc.

    Raises:
        OSError: it has ended.
    """
    opened: list[int] = []
    try:
        for name in (*(f"ns/{kind}" for kind in _NAMESPACES), "root"):
            opened.append(_open(f"{task}/{name}"))  # noqa: PERF401 - what is open is closed when one cannot be opened
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    return {"namespaces": list(zip(opened, _NAMESPACES.values(), strict=False)), "root": opened[-1]}


def _answer(document: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


def _become(order: Mapping[str, Any], workers: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(order["streams"])
    for descriptor, flag in order["namespaces"]:
        _enter(descriptor, flag)
    _change_root(order["root"])
    os.environ.clear()
    os.environ.update(order["env"])
    _search(order["env"].get("PYTHONPATH", ""))
    os.chdir("/")
    sys.argv = list(order["argv"])
    if order["workers"] and order["argv"][:2] == ["nodeplug", "serve"]:
        sys.modules["nodeplug.worker.spawning"].__dict__["execute"] = workers.fork_server().execute
    try:
        if order["target"].endswith(".py"):
            runpy.run_path(order["target"], run_name="__main__")
        else:
            runpy.run_module(order["target"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(end.code or 0)
    _end(0)


def _end(status: int) -> NoReturn:
    """Exit like the interpreter, but without freeing objects.

    To delete all that was imported would copy each page of it, half of what the life of a short process costs.
    """
    getattr(threading, "_shutdown")()  # noqa: B009 - waits for threads
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or no stream
            stream.flush()
    os._exit(status)  # noqa: TID251 - see above


def _search(path: str) -> None:
    sys.path[:] = dict.fromkeys([*filter(None, path.split(os.pathsep)), *_SEARCHED])
    sys.path_importer_cache.clear()  # a folder may have other files by now


def _redirect(streams: list[str]) -> None:
    """Open files in place of the server's own streams: they are the only descriptors that a child would keep."""
    for number, path in enumerate(streams):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _enter(descriptor: int, flag: int) -> None:
    own = {os.stat(f"/proc/self/ns/{kind}").st_ino for kind in _NAMESPACES}  # noqa: PTH116 - no path, a kernel's object
    if os.fstat(descriptor).st_ino not in own:  # an ordinary user may not enter even the namespace that this is
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, flag) != 0:
            raise OSError(ctypes.get_errno(), "enter the namespace of the test")
    os.close(descriptor)


def _change_root(descriptor: int) -> None:
    """Change to the root directory of the test. setns(2) resets it, which matters if the test runs in a chroot."""
    if not os.path.samestat(os.fstat(descriptor), os.stat("/")):  # noqa: PTH116
        os.fchdir(descriptor)
        os.chroot(".")
    os.close(descriptor)


if __name__ == "__main__":
    main()
