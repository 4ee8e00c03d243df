"""Merges the layers of an image in a child process with limits of memory and time.

Whoever makes an image chooses every byte of its layers: a header of gigabytes, a path of sixty thousand folders, a
million entries. What reads them must not be the daemon. As `python -m nodeplug_volumes.merging ORDER` it writes the
merged tar stream to stdout and, if it fails, one line of JSON to stderr.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from nodeplug import InvalidRequest, NotFound, PluginError
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import oci

MEMORY: Final = 1 << 30
"""Bytes of address space of the child; an image with 500,000 entries takes about two thirds of it."""
SECONDS: Final = 1800
"""Of processor time."""
_SCORE: Final = "500"
"""oom_score_adj: the OOM killer takes this process before the daemon."""
_PR_SET_PDEATHSIG: Final = 1
_SAID: Final = 4096
_ERRORS: Final[Mapping[str, type[PluginError]]] = {one.__name__: one for one in (PluginError, InvalidRequest, NotFound)}


def write(layout: oci.Layout, layers: Sequence[oci.Layer], room: int, into: int) -> None:
    """Write what all layers together show as one tar stream.

    Args:
        layout: of the image.
        layers: from the lowest to the uppermost.
        room: bytes that there may be.
        into: a descriptor of a pipe or file. If nobody reads it any more, the child ends without a word.

    Raises:
        InvalidRequest: a layer is damaged, leads out of the image, or needs more memory or time.
        TooLarge: there is more than there is room for.
        PluginError: the child cannot be started.
    """
    order = {"folder": layout.folder, "name": layout.name, "layers": [asdict(one) for one in layers], "room": room}
    limits = {"memory": MEMORY, "seconds": SECONDS, "parent": os.getpid()}
    # The same modules as here, wherever they lie.
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    said = os.memfd_create("errors", os.MFD_CLOEXEC)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "nodeplug_volumes.merging", json.dumps({**order, **limits})],
            stdin=subprocess.DEVNULL,
            stdout=into,
            stderr=said,
            env={"PYTHONPATH": path, "PATH": os.defpath},
            cwd="/",
            pass_fds=(layout.folder,),
        )
        with child:
            try:
                child.wait()
            finally:
                child.kill()
        _raise(child.returncode, os.pread(said, _SAID, 0), layout.name)
    except OSError as error:
        raise PluginError(f"the process that reads image {layout.name} cannot be started: {error.strerror}") from error
    finally:
        os.close(said)


def _raise(status: int, said: bytes, name: str) -> None:
    """Raise what a child has failed with."""
    if not status or status == -signal.SIGPIPE:
        return
    if status == -signal.SIGXCPU:
        raise InvalidRequest(
            f"image {name} needs more than {SECONDS} s of CPU time to be read; mount an image with less in it"
        )
    lines = said.decode(errors="replace").strip().splitlines() or [""]
    with suppress(ValueError, KeyError, TypeError):
        told: Any = json.loads(lines[-1])
        if told["error"] == "TooLarge":
            raise oci.TooLarge(int(told["size"]))
        if told["error"] == "MemoryError":
            raise InvalidRequest(
                f"image {name} needs more than {show(MEMORY)} of memory to be read; mount an image with fewer files"
            )
        raise _ERRORS.get(told["error"], PluginError)(str(told["message"]))
    raise PluginError(f"the process that reads image {name} ended with status {status}: {lines[-1][:200]}")


def main(order: Mapping[str, Any]) -> int:
    """Do the work of the child; return its exit status."""
    _limit(order)
    layers = [oci.Layer(**one) for one in order["layers"]]
    said: dict[str, object] = {}
    try:
        with os.fdopen(1, "wb") as into:
            oci.write(oci.Layout(order["folder"], order["name"]), layers, order["room"], into)
    except BrokenPipeError:
        return 0
    except oci.TooLarge as error:
        said = {"error": "TooLarge", "size": error.size}
    except MemoryError:
        said = {"error": "MemoryError"}
    except PluginError as error:
        said = {"error": type(error).__name__, "message": error.message}
    if said:
        os.write(2, json.dumps(said).encode())
    return int(bool(said))


def _limit(order: Mapping[str, Any]) -> None:
    """Set the limits of this process, and have the kernel end it with the daemon."""
    resource.setrlimit(resource.RLIMIT_AS, (order["memory"], order["memory"]))
    resource.setrlimit(resource.RLIMIT_CPU, (order["seconds"], order["seconds"] + 5))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_SCORE, encoding="ascii")
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["parent"]:
        os._exit(1)  # noqa: TID251 - the daemon has gone


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))  # noqa: TID251 - the end of this process is its answer
