"""Device plugins that break kubelet's rules, one each."""

import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from nodeplug import (
    Claim,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceList,
    DeviceMount,
    DeviceNode,
    DevicePrefer,
    DevicePrestart,
    DeviceReleased,
    Exhausted,
    Grant,
    Host,
    InvalidRequest,
    NotFound,
    NotReady,
    hookimpl,
)

_NUMBERS: Final = count()


class Tame:
    """Breaks nothing: four shares of /dev/null."""

    def __init__(self, config: object, host: Host) -> None:
        self.host = host

    def grant(self, name: str) -> Grant:
        return Grant(nodes=(DeviceNode("/dev/null"),), env={"SHARE": name})

    def ids(self) -> list[str]:
        return [f"null-{number}" for number in range(4)]

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim("example.com/null")]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return [Device(DeviceId(name), grant=self.grant(name)) for name in self.ids()]

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        return list(dict.fromkeys((*request.must_include, *request.available)))[: request.size]

    @hookimpl
    def device_prestart(self, request: DevicePrestart) -> None:
        return

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        return


class Picky(Tame):
    """Breaks nothing either: two shares at most and of one half alone, and a resource that only counts the halves."""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim("example.com/null"), DeviceClaim("example.com/count")]

    @hookimpl
    def device_list(self, request: DeviceList) -> Sequence[Device]:  # type: ignore[override]  # Tame's takes less
        if request.resource == "example.com/count":
            return [Device(DeviceId(name)) for name in ("a", "b")]
        return [Device(DeviceId(f"{half}-{number}"), grant=self.grant(half)) for half in "ab" for number in range(2)]

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        half = (*request.must_include, *request.available)[0][0]
        names = dict.fromkeys((*request.must_include, *request.available))
        return [name for name in names if name[0] == half][: request.size]

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        if request.resource == "example.com/count":
            raise InvalidRequest("it only counts")
        if len({name[0] for name in request.ids}) > 1:
            raise Exhausted(f"no half has {len(request.ids)}")
        return None


class CannotList(Tame):
    breaks = "list-succeeds", "the bus is busy"

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        raise NotReady("the bus is busy")


class RepeatsIds(Tame):
    breaks = "ids-are-unique", "'null' 4 times"

    def ids(self) -> list[str]:
        return ["null"] * 4


class LongIds(Tame):
    breaks = "ids-are-short", "64 characters"

    def ids(self) -> list[str]:
        return ["x" * 64]


class LongList(Tame):
    breaks = "list-fits", "at most 1048576"

    def ids(self) -> list[str]:
        return [f"{number:063}" for number in range(16_000)]


class NegativeNode(Tame):
    breaks = "list-can-be-sent", "nodes count from 0"

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return [Device(DeviceId("null"), numa_nodes=(-1,))]


class DrawsIds(Tame):
    breaks = "lists-are-alike", "in one of two lists"

    def ids(self) -> list[str]:
        return [f"null-{next(_NUMBERS)}"]


class HangsInList(Tame):
    breaks = "registers-with-kubelet", "kubelet waited"

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        if self.host.plugin == "subject":  # in the daemon alone
            raise NotReady("not on this node")
        return super().device_list()


class EndsWithKubelet(Tame):
    """As many plugins do: their DaemonSet starts them again."""

    breaks = "registers-again-after-kubelet-restarts", ""
    isolation = "thread"
    _seen: int = 0

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        # <root>/var/lib/nodeplug/plugins/<section> or alike
        lib = next(path for path in self.host.state_dir.parents if path.name in {"lib", "tmp"})
        socket = lib / "kubelet" / "device-plugins" / "kubelet.sock"
        changed = socket.stat().st_ctime_ns if socket.exists() else self._seen
        if self._seen and changed != self._seen:
            os._exit(1)
        self._seen = changed
        return super().device_list()


class NamesDevicesByProcess(Tame):
    breaks = "ids-survive-a-restart", "before example.com/null"

    def ids(self) -> list[str]:
        return [f"null-{os.getpid()}"]


class RefusesOne(Tame):
    breaks = "one-device-is-granted", "in pairs alone"

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        if len(request.ids) == 1:
            raise InvalidRequest("shares are given in pairs alone")
        return None


class RefusesTheLast(Tame):
    """Lists as healthy what it does not grant; the rule is that of RefusesOne."""

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        if "null-3" in request.ids:
            raise Exhausted("null-3 is reserved")
        return None


class RefusesMany(Tame):
    breaks = "several-devices-are-granted-or-refused", "one by one"

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        if len(request.ids) > 1:
            raise NotReady("shares are given one by one")
        return None


class CountsGrants(Tame):
    breaks = "grants-are-repeatable", "then"

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        return Grant(env={"NUMBER": str(next(_NUMBERS))})


class CountsInAProcess(Tame):
    """Grants alike in the daemon, and never twice the same in a process of its own."""

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        return Grant(env={"NUMBER": "0" if "serve" in sys.argv else str(next(_NUMBERS))})


class GrantsMissingNode(Tame):
    breaks = "granted-nodes-exist", "/dev/conformance-missing"

    def grant(self, name: str) -> Grant:
        return Grant(nodes=(DeviceNode("/dev/conformance-missing"),))


class GrantsMissingMount(Tame):
    breaks = "granted-mounts-exist", "/conformance/missing"

    def grant(self, name: str) -> Grant:
        return Grant(mounts=(DeviceMount("/conformance/missing", "/data"),))


class GrantsOnePathTwice(Tame):
    breaks = "container-paths-are-distinct", "two things at /dev/share"

    def grant(self, name: str) -> Grant:
        return Grant(nodes=(DeviceNode("/dev/null", "/dev/share"), DeviceNode("/dev/zero", "/dev/share")))


class OddVariable(Tame):
    breaks = "env-names-are-valid", "'4-share'"

    def grant(self, name: str) -> Grant:
        return Grant(env={"4-share": "x"})


class OddCdiName(Tame):
    breaks = "cdi-names-are-well-formed", "example.com/no class=a"

    def grant(self, name: str) -> Grant:
        return Grant(cdi=("example.com/no class=a",))


class PrefersTooFew(Tame):
    breaks = "preferences-have-the-asked-size", "2 of"

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        return request.must_include or request.available[:1]


class PrefersOthers(Tame):
    breaks = "preferences-are-available", "mine"

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        return [DeviceId(f"mine-{number}") for number in range(request.size)]


class PrefersTheFirst(Tame):
    breaks = "preferences-include-what-they-must", "must be included"

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        return request.available[: request.size]


class ComplainsOfTooFew(Tame):
    breaks = "preference-of-too-few-is-no-error", "only 4"

    @hookimpl
    def device_prefer(self, request: DevicePrefer) -> Sequence[DeviceId] | None:
        if request.size > len(request.available):
            raise InvalidRequest(f"there are only {len(request.available)}")
        return super().device_prefer(request)


class PreparesOnce(Tame):
    breaks = "prestart-is-repeatable", "File exists"

    @hookimpl
    def device_prestart(self, request: DevicePrestart) -> None:
        Path(self.host.run_dir, *request.ids).mkdir()


class ReleasesOnce(Tame):
    breaks = "release-is-repeatable", "nobody holds"

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        raise NotFound(f"nobody holds {request.ids[0]}")
