"""A process that has imported what a plugin's process imports, and forks one on request, as a child of its own parent.

Run as a file, by `forked_workers`, with the descriptor of a socket on which orders come. It has no second thread.
"""

import ctypes
import fcntl
import gc
import json
import os
import socket
import sys
from typing import Any

from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.worker.encoding import prepare
from nodeplug.worker.inside import main

_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
_CLONE_PARENT = 0x8000
_LIBC = ctypes.PyDLL(None, use_errno=True)
_ORDERS = 100  # away from the numbers that a plugin's process has


def _fork() -> int:
    """Fork a child of this process's parent: whom a worker asks the kernel to end with, and who waits for it."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_LIBC.syscall(_CLONE, _CLONE_PARENT, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code))
    return pid


def serve(orders: socket.socket) -> int:
    """Answer orders until there are no more; in each child, become the worker."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 4)
        if not data:
            return 0
        try:
            pid = _fork()
        except OSError as error:
            orders.send(json.dumps({"errno": error.errno}).encode())
        else:
            if pid == 0:
                return _become(json.loads(data), descriptors, orders)
        for one in descriptors:
            os.close(one)


def _become(order: dict[str, Any], descriptors: list[int], orders: socket.socket) -> int:
    """Be what `python -P -m nodeplug.worker` is once it has imported everything."""
    os.setsid()
    for number, one in enumerate(descriptors):  # input, output, errors, and the control socket; they came in order
        os.dup2(one, number)
    for one in descriptors:
        if one >= len(descriptors):
            os.close(one)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:] = dict.fromkeys([*order["environment"]["PYTHONPATH"].split(os.pathsep), *sys.path])
    sys.path_importer_cache.clear()  # folders have other files by now
    with orders:
        orders.send(json.dumps({"pid": os.getpid()}).encode())
    return main(order["arguments"])


if __name__ == "__main__":
    prepare([*ANSWERS])
    gc.collect()
    gc.freeze()  # a garbage collection in a child would copy all that was imported
    inherited = int(sys.argv[1])
    moved = fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, _ORDERS)
    os.close(inherited)
    raise SystemExit(serve(socket.socket(fileno=moved)))
