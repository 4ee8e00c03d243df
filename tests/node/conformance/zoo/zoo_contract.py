"""Plugins that break the contract of every plugin, one rule each."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict
from pyroute2 import IPRoute

from nodeplug import Claim, Host, Metric, NotReady, PluginError, VolumeClaim, hookimpl

_NUMBERS: Final = count()


class Tame:
    """Breaks nothing."""

    def __init__(self, config: object, host: Host) -> None:
        self.host = host

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example/tame")]

    @hookimpl
    def start(self) -> None:
        (self.host.run_dir / "pid").write_text(str(os.getpid()))

    @hookimpl
    def stop(self) -> None:
        (self.host.run_dir / "pid").unlink(missing_ok=True)

    @hookimpl
    def health(self) -> None:
        return

    @hookimpl
    def volume_publish(self) -> None:
        raise NotReady("this plugin has no volumes")


class NotConstructed(Tame):
    breaks = "plugin-is-constructed", "no module named wheel"

    def __init__(self, config: object, host: Host) -> None:
        raise PluginError("no module named wheel")


class _Loose(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TakesAnyKey(Tame):
    breaks = "unknown-keys-are-refused", "was accepted"
    Config = _Loose


class WaitsInItsConstructor(Tame):
    breaks = "constructor-returns", "had not returned"

    def __init__(self, config: object, host: Host) -> None:
        threading.Event().wait()


class StartsThreadInItsConstructor(Tame):
    breaks = "constructor-starts-no-thread", "eager"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        threading.Thread(target=threading.Event().wait, name="eager", daemon=True).start()


class WritesInItsConstructor(Tame):
    breaks = "constructor-writes-no-file", "eager"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        (host.state_dir / "eager").mkdir(parents=True)


class MisspellsHook(Tame):
    breaks = "hooks-are-known", "volume_publisch"

    @hookimpl
    def volume_publisch(self) -> None:
        return


class ForgetsMark(Tame):
    breaks = "hooks-are-marked", "volume_id"

    def volume_id(self) -> str:
        return "x"


class ClaimsPath(Tame):
    breaks = "claims-are-valid", "../../sh"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("../../sh")]


class ClaimsByChance(Tame):
    breaks = "claims-are-stable", "then"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim(f"example/v{next(_NUMBERS)}")]


class StartsOnce(Tame):
    breaks = "second-start-succeeds", "already started"
    _started: ClassVar[list[int]] = []

    @hookimpl
    def start(self) -> None:
        if self._started:
            raise PluginError("already started")
        self._started.append(1)


class LeavesLock(Tame):
    breaks = "start-after-kill-succeeds", "another one runs"

    @hookimpl
    def start(self) -> None:
        if (self.host.run_dir / "pid").exists():
            raise PluginError("another one runs")
        super().start()


class StopsOnce(Tame):
    breaks = "second-stop-succeeds", "FileNotFoundError"

    @hookimpl
    def stop(self) -> None:
        (self.host.run_dir / "pid").unlink()


class LeavesThread(Tame):
    breaks = "no-thread-outlives-stop", "stray"

    @hookimpl
    def start(self) -> None:
        threading.Thread(target=threading.Event().wait, name="stray", daemon=True).start()


class LeavesDescriptor(Tame):
    breaks = "no-descriptor-outlives-stop", "/dev/null"

    @hookimpl
    def start(self) -> None:
        self._kept = Path("/dev/null").open()  # noqa: SIM115  that is what is wrong with it


class IsNeverWell(Tame):
    breaks = "healthy-after-start", "a cold"

    @hookimpl
    def health(self) -> None:
        raise NotReady("it has a cold")


class AnswersHealth(Tame):
    breaks = "answers-have-their-types", "bool from health"

    @hookimpl
    def health(self) -> Any:
        return True


class RaisesAnything(Tame):
    breaks = "errors-are-sentences", "KeyError"

    @hookimpl
    def health(self) -> None:
        raise KeyError("state")


class Prints(Tame):
    breaks = "nothing-is-printed", "hello"

    @hookimpl
    def start(self) -> None:
        sys.stderr.write("hello")


class HangsInStart(Tame):
    """Breaks rules that a run of one rule alone does not judge."""

    @hookimpl
    def start(self) -> None:
        threading.Event().wait()


class PrintsAndHangs(HangsInStart):
    @hookimpl
    def start(self) -> None:
        sys.stderr.write("hello")
        super().start()


class EndsTheDaemon(Tame):
    breaks = "daemon-runs-it", "the daemon ended with 3"
    isolation = "thread"

    @hookimpl
    def start(self) -> None:
        if "serve" in sys.argv:
            os._exit(3)


class LeavesLink(Tame):
    breaks = "nothing-is-left-after-stop", "link left"

    @hookimpl
    def stop(self) -> None:
        with IPRoute() as route:
            number = os.getpid()
            route.link("add", ifname=f"left{number}", kind="veth", peer={"ifname": f"over{number}"})


class TellsObjects(Tame):
    breaks = "inspection-is-json", "not JSON serializable"

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        return {"host": object()}


class MeasuresNothing(Tame):
    breaks = "metrics-are-measured", "no gauge"

    @hookimpl
    def metrics(self) -> Sequence[Metric]:
        raise NotReady("there is no gauge")
