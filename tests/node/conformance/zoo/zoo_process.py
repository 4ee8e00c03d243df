"""Plugins that misuse their process, one rule each. They do so in the daemon and in a worker, not in a rehearsal."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeplug import Claim, Device, DeviceClaim, DeviceId, Host, hookimpl


class Tame:
    """Breaks nothing: it has a device, and counts how often it was inspected."""

    def __init__(self, config: object, host: Host) -> None:
        self.kept: list[object] = []

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim("example.com/tame")]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return [Device(DeviceId("one"))]

    @hookimpl
    def start(self) -> None:
        if Path(sys.argv[0]).name != "probe.py":
            self.misuse()

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        return {"kept": len(self.kept)}

    def misuse(self) -> None:
        return


class EndsItsProcess(Tame):
    breaks = "process-stays-alive", "it exited with status 3"

    def misuse(self) -> None:
        if "serve" not in sys.argv:
            threading.Timer(0.2, os._exit, [3]).start()


class NeverRests(Tame):
    breaks = "idle-plugin-rests", "of a processor or more, all the time"

    def misuse(self) -> None:
        if "serve" not in sys.argv:
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self.kept:
            pass


class WorksForAWhile(Tame):
    """Breaks nothing: it works for a second after its start, and rests from then on."""

    def misuse(self) -> None:
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        end = time.monotonic() + 1.0  # a wait for a processor counts as work
        while time.monotonic() < end:
            pass


class FillsCache(Tame):
    """Breaks nothing: it keeps a descriptor and some memory of each of the first calls."""

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        if len(self.kept) < 400:
            self.kept += [bytearray(b"x" * (1 << 16)), os.open("/dev/null", os.O_RDONLY)]
        return super().inspect()


class KeepsMemory(Tame):
    breaks = "memory-stays-bounded", "rounds of inspect"

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        self.kept.append(bytearray(b"x" * (1 << 16)))
        return super().inspect()


class KeepsDescriptors(Tame):
    breaks = "descriptors-stay-bounded", "open, ever more of /dev/null"

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        if Path(sys.argv[0]).name != "probe.py":
            self.kept += [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
        return super().device_list()


class ChangesFolder(Tame):
    breaks = "process-is-left-as-it-was", "its working directory is /usr"

    def misuse(self) -> None:
        os.chdir("/usr")


class ChangesMask(Tame):
    breaks = "process-is-left-as-it-was", "its umask is 0137, it was"

    def misuse(self) -> None:
        os.umask(0o137)


class ClosesStreams(Tame):
    breaks = "process-is-left-as-it-was", ", it was /dev/null"

    def misuse(self) -> None:
        os.close(0)


class IgnoresChildren(Tame):
    breaks = "process-is-left-as-it-was", "it ignores SIGCHLD"

    def misuse(self) -> None:
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGCHLD, 1)  # SIG_IGN


class LeavesChild(Tame):
    breaks = "nothing-is-left-after-stop", "process sleep 60"

    def misuse(self) -> None:
        self.kept.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
