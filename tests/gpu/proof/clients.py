"""CUDA clients of a stage, each a process of its own.

Owns: how one is started as a container would be, and talked to within a deadline.
Refuses: CUDA: `cuda_client.py` has that, in the process.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.gpu.proof.machine import Machine
from tests.gpu.proof.patience import patient
from tests.gpu.proof.stage import Disproved

HERE: Final = Path(__file__).parent
NODE_PYTHON: Final = "/usr/bin/python3"
PATIENCE: Final = 20.0
"""Seconds for one command; attaching to a card without persistence mode takes some."""
_TAIL: Final = 300
_FAULTS: Final = {
    2: "out of memory",
    700: "illegal address",
    716: "misaligned address",
    805: "MPS cannot be reached, or is of another version than the driver",
    806: "MPS does not answer, or is of another version than the driver",
    807: "the server of MPS is not ready",
}


class Unanswered(Disproved):
    """A client did not answer in time."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs.

    Attributes:
        env: as Allocate has it, in place of the same variables of this process.
        mounts: source, target and whether read-only.
        cgroups: files of processes.
        user: in place of root.
        library: libcuda as the client finds it; by default as the driver's root has it.
        python: that runs the client; by default ours, or the node's for another user.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[tuple[str, str, bool]] = ()
    cgroups: Sequence[str] = ()
    user: int | None = None
    library: str = ""
    python: str = ""

    def described(self) -> dict[str, Any]:
        """Return what `inside.py` reads."""
        found: dict[str, Any] = {"cgroups": list(self.cgroups)}
        found |= {"mounts": list(self.mounts)} if self.mounts else {}
        return found | ({"user": self.user} if self.user is not None else {})


class Client:
    """A started client; one that is not told to do anything uses no card."""

    def __init__(self, machine: Machine, place: Place | None = None, starter: Sequence[str] = ()) -> None:
        """Start a client.

        Args:
            machine: whose driver it uses.
            place: where it runs.
            starter: a command that executes it, in place of `inside.py`.
        """
        # CUDA has an order of its own: without a name it would be another card on a machine with several.
        place = place or Place(env={"CUDA_VISIBLE_DEVICES": machine.card["uuid"]})
        found = machine.library("libcuda.so.1")
        library = place.library or str(found or "libcuda.so.1")
        env = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("CUDA_MOCK_") or not name.startswith(("CUDA_", "NVIDIA_"))
        }
        if found is not None and machine.driver_root != Path("/") and not starter:
            env["LD_LIBRARY_PATH"] = str(found.parent)  # libcuda loads others of the driver by name
        source = (HERE / "cuda_client.py").read_text(encoding="utf-8")  # another user may not be able to read the file
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the client
        inside = [sys.executable, "-I", str(HERE / "inside.py"), json.dumps(place.described())]
        self._process = subprocess.Popen(
            [*(starter or inside), place.python or _python(place), "-I", "-c", source, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**env, **place.env},
            cwd="/",
            bufsize=0,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """Its process id: `inside.py` executes, and does not fork."""
        return self._process.pid

    def tell(self, do: str, **more: Any) -> None:
        """Send a command, and do not wait.

        Raises:
            Unanswered: the client has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        except OSError:
            raise self._gone(do) from None

    def hear(self, do: str, patience: float = PATIENCE) -> Mapping[str, Any]:
        """Return the reply to a command.

        Raises:
            Unanswered: none came in time, or the client has ended.
        """
        assert self._process.stdout is not None
        end = time.monotonic() + patient(patience)
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise Unanswered(f"a client did not answer `{do}` within {patience:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._gone(do)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def _gone(self, do: str) -> Unanswered:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-_TAIL:]
        return Unanswered(f"a client ended with {status} before it answered `{do}`{f': {said}' if said else ''}")

    def ask(self, do: str, patience: float = PATIENCE, **more: Any) -> Mapping[str, Any]:
        """Send a command and return its reply, an error of CUDA included."""
        self.tell(do, **more)
        return self.hear(do, patience)

    def do(self, do: str, patience: float = PATIENCE, **more: Any) -> Mapping[str, Any]:
        """Send a command that must succeed.

        Raises:
            Disproved: CUDA returned an error.
        """
        reply = self.ask(do, patience, **more)
        if "error" in reply:
            raise Disproved(f"`{do}` of a client: {failure(reply)}")
        return reply

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def ended_by(self, seconds: float) -> int | None:
        """Return its exit status, negative for a signal; None while it runs after some seconds."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(patient(seconds))
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if self.ended_by(5) is None:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _python(place: Place) -> str:
    """Return an interpreter that the client's user can execute: a virtual environment may be in a folder of root's."""
    return NODE_PYTHON if place.user is not None and Path(NODE_PYTHON).exists() else sys.executable


def failure(reply: Mapping[str, Any]) -> str:
    """Return what an error means, as a sentence."""
    code = reply["error"]
    return f"{reply['call']} returned {code}{f' ({_FAULTS[code]})' if code in _FAULTS else ''}"
