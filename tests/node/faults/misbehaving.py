"""Plugins for the daemon under test: they do what the request, or their own configuration, says under "do"."""

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from nodeplug import (
    Claim,
    CniAdd,
    CniClaim,
    CniDel,
    CniResult,
    Device,
    DeviceClaim,
    DeviceId,
    Exhausted,
    Host,
    PluginError,
    TryAgain,
    VolumeClaim,
    hookimpl,
)

HUGE = "x" * int(os.environ.get("HUGE", "0"))
FORGED = "2026-01-01T00:00:00.000Z ERROR nodeplug.daemon forged"


class Misbehaviour(BaseModel, extra="forbid"):
    """What goes wrong in the hooks that have no request."""

    claim: str = ""
    kind: str = "cni"
    made: str = ""
    claims: str = ""
    health: str = ""
    stop: str = ""
    allocate: str = ""
    number: int = 0


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Slow(Exception):
    """Its text does not come before the test lets go."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.wait = wait

    def __str__(self) -> str:
        self.wait()
        return "at last"


class SlowRefusal(TryAgain):
    """The same, of the contract."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__("a text of the contract")
        self.wait = wait

    def __str__(self) -> str:
        self.wait()
        return "at last"


class Mute(PluginError):
    def __init__(self) -> None:  # the parent's is forgotten
        pass


class Plugin:
    Config = Misbehaviour

    def __init__(self, config: Misbehaviour, host: Host) -> None:
        self.config, self.host = config, host
        self.do(config.made)

    def wait_for(self, name: str) -> None:
        while not (self.host.run_dir / name).exists():
            time.sleep(0.01)

    def do(self, what: str, key: str = "") -> None:
        if what:
            getattr(self, f"do_{what}")(key)

    def do_raise(self, key: str) -> None:
        raise OSError(f"no such card\n{FORGED}")

    def do_full(self, key: str) -> None:
        raise Exhausted("no address is left: 254 of 254 are in use")

    def do_exit(self, key: str) -> None:
        sys.exit(3)

    def do_unprintable(self, key: str) -> None:
        raise Unprintable

    def hang(self, key: str) -> None:
        (self.host.run_dir / f"held{key}").touch()
        self.wait_for(f"go{key}")

    def do_slow(self, key: str) -> None:
        raise Slow(lambda: self.hang(key))

    def do_slow_refusal(self, key: str) -> None:
        raise SlowRefusal(lambda: self.hang(key))

    def do_slow_log(self, key: str) -> None:
        self.host.log.error("it went wrong", exc_info=Slow(lambda: self.hang(key)))

    def do_huge(self, key: str) -> None:
        raise OSError("begin " + HUGE)

    def do_huge_lines(self, key: str) -> None:
        raise OSError("begin\n" + "\n" * len(HUGE))

    def do_huge_refusal(self, key: str) -> None:
        raise Exhausted("begin " + HUGE, details="more " + HUGE)

    def do_huge_cause(self, key: str) -> None:
        try:
            self.do_huge(key)
        except OSError as error:
            raise RuntimeError("begin " + HUGE) from error

    def do_huge_log(self, key: str) -> None:
        self.host.log.error("begin %s", HUGE)
        raise Exhausted("begin")

    def do_deep(self, key: str) -> None:
        if len(inspect.stack(0)) < 300:
            self.do_deep(key + "x")
        raise RuntimeError(f"begin at {key}")

    def do_mute(self, key: str) -> None:
        raise Mute

    def do_object(self, key: str) -> None:
        raise PluginError(OSError("a wrapped error"))  # type: ignore[arg-type]  # the mistake under test

    def do_block(self, key: str) -> None:
        (self.host.run_dir / f"blocked{key}").touch()
        threading.Event().wait()

    def do_hold(self, key: str) -> None:
        """Wait until the test lets go."""
        (self.host.run_dir / f"held{key}").touch()
        self.wait_for(f"go{key}")

    def do_open(self, key: str) -> None:
        """Open descriptors until there are none left, and keep them until the test lets go."""
        opened: list[int] = []
        with suppress(OSError):
            while True:
                opened.append(os.dup(0))
        self.wait_for(f"go{key}")
        for descriptor in opened:
            os.close(descriptor)

    def do_print(self, key: str) -> None:
        sys.stdout.write("to stdout\n")
        sys.stdout.flush()
        sys.stderr.write("to stderr\n")
        os.write(1, b"to descriptor 1\n")

    def do_child(self, key: str) -> None:
        if subprocess.run(["/bin/sh", "-c", "exit 7"], check=False).returncode != 7:
            raise PluginError("somebody else has taken the child's exit status")

    def do_thread(self, key: str) -> None:
        threading.Thread(target=threading.Event().wait, name="left running", daemon=False).start()

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        self.do(self.config.claims)
        name = self.config.claim or self.host.plugin
        match self.config.kind:
            case "device":
                return [DeviceClaim(f"example.com/{name}")]
            case "volume":
                return [VolumeClaim(f"scratch/{name}")]
        return [CniClaim(name)]

    @hookimpl
    def start(self) -> None:
        if self.config.health:
            self.host.refresh_health()

    @hookimpl
    def health(self) -> None:
        self.do(self.config.health)

    @hookimpl
    def stop(self) -> None:
        self.do(self.config.stop)

    @hookimpl
    def cni_add(self, request: CniAdd) -> Any:
        what = str(request.config.get("do", ""))
        if what == "wrong":
            return "an address"
        if what == "none":
            return None
        if what == "coroutine":
            return asyncio.sleep(0)
        self.host.journal.write(request.container_id, phase="begun")
        self.do(what, f"-{request.container_id}")
        self.host.journal.write(request.container_id, phase="done")
        return CniResult()

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        entry = self.host.journal.read(request.container_id)
        with (self.host.run_dir / "deleted").open("a") as notes:
            notes.write(f"{request.container_id} {entry.phase if entry else 'unknown'}\n")
        self.host.journal.remove(request.container_id)

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return [Device(DeviceId("one")), Device(DeviceId("two"))]

    @hookimpl
    def device_allocate(self) -> None:
        self.do(self.config.allocate)

    @hookimpl
    def volume_stage(self, request: Any) -> Any:
        what = request.options.get("do", "")
        if what == "wrong":
            return "mounted"
        self.do(what)
        subprocess.run(["mount", "-t", "tmpfs", "scratch", request.staging_path], check=True)
        return None


class Asynchronous(Plugin):
    @hookimpl
    async def cni_add(self, request: CniAdd) -> CniResult:
        return CniResult()
