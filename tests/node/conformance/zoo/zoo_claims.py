"""Device plugins that break rules of Dynamic Resource Allocation, one each; as device plugins they are tame."""

import os
import time
from collections.abc import Sequence
from itertools import count
from typing import Final

from nodeplug import (
    Claim,
    Counters,
    Device,
    DeviceAllocate,
    DeviceClaim,
    DeviceId,
    DeviceNode,
    DeviceReleased,
    Exhausted,
    Grant,
    Host,
    NotFound,
    NotReady,
    Part,
    hookimpl,
)

_NUMBERS: Final = count()
_GIB: Final = 1 << 30


class Tame:
    """Breaks nothing: two cards of three parts each, which are /dev/null and say what they are, and one that is ill."""

    def __init__(self, config: object, host: Host) -> None:
        self.host = host

    def part(self, card: str, number: int) -> Part:
        return Part(DeviceId(card), {"memory": _GIB})

    def attributes(self) -> dict[str, int | bool | str]:
        return {"model": "null", "lanes": 4, "example.com/fast": True}

    def listed(self) -> list[Device]:
        return [
            Device(
                DeviceId(f"{card}-{number}"),
                healthy=card != "ill",
                reason="it is ill" if card == "ill" else "",
                part=self.part(card, number),
                attributes=self.attributes(),
                capacity={"memory": 3 * _GIB},
            )
            for card in ("ill", "a", "b")
            for number in range(3)
        ]

    def grant(self, request: DeviceAllocate) -> Grant:
        return Grant(nodes=(DeviceNode("/dev/null"),), env={"PARTS": ",".join(sorted(request.ids))})

    def released(self, request: DeviceReleased) -> None:
        """Hear of the end."""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim("example.com/null"), DeviceClaim("example.com/nulls", counted=True)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        return self.listed()

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        return self.grant(request)

    @hookimpl
    def device_released(self, request: DeviceReleased) -> None:
        self.released(request)


# --- lists


class UnequalParts(Tame):
    breaks = "parts-of-one-thing-agree", "the amount of 'ill-1' is"

    def part(self, card: str, number: int) -> Part:
        return Part(DeviceId(card), {"memory": _GIB << number})


class Cut(Tame):
    """Breaks nothing: a card that is given away whole, in parts, or as one of two instances."""

    def counters(self, name: str, slices: int) -> Counters:
        return Counters("card", {"slices": 2}, {"slices": slices})

    def listed(self) -> list[Device]:
        part = Part(DeviceId("shared"), {"memory": _GIB})
        return [
            *(Device(DeviceId(f"i{n}"), counters=self.counters(f"i{n}", 1)) for n in range(2)),
            Device(DeviceId("card"), counters=self.counters("card", 2)),
            *(Device(DeviceId(f"s{n}"), part=part, counters=self.counters("shared", 2)) for n in range(3)),
        ]


class TakesMoreThanThereIs(Cut):
    breaks = "counter-sets-agree", "'card', which consumes 3 of slices of counter set 'card', which has 2 of slices"

    def counters(self, name: str, slices: int) -> Counters:
        return super().counters(name, slices + (name == "card"))


class LongAttribute(Tame):
    breaks = "attributes-are-published", "model of 65 bytes"

    def attributes(self) -> dict[str, int | bool | str]:
        return {"model": "x" * 65}


class NamesTwoAlike(Tame):
    breaks = "devices-are-offered-to-claims", "lists 'a' twice"

    def listed(self) -> list[Device]:
        # Kubelet gets each once: where claims are served, the list has one more.
        by_claims = f"{self.host.state_dir}".split("/var/")[0].endswith("/d")
        return [Device(DeviceId(name)) for name in ("a", "b", *("a" * by_claims))]


class HidesWhatItGave(Tame):
    breaks = "held-devices-stay-offered", "a was 3Gi of memory; while a claim has it, it is 2Gi of memory"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        self.given: set[str] = set()

    def listed(self) -> list[Device]:
        return [one for one in super().listed() if one.id not in self.given]

    def grant(self, request: DeviceAllocate) -> Grant:
        self.given.update(request.ids if request.claim else ())
        return super().grant(request)

    def released(self, request: DeviceReleased) -> None:
        self.given.difference_update(request.ids)


# --- grants


class KnowsNoClaims(Tame):
    breaks = "a-claim-is-granted", "no pod is known"

    def grant(self, request: DeviceAllocate) -> Grant:
        if request.claim is not None:
            raise NotReady("no pod is known")
        return super().grant(request)


class GivesTwoAtMost(Tame):
    breaks = "all-parts-are-granted", "two parts at most"

    def grant(self, request: DeviceAllocate) -> Grant:
        if len(request.ids) > 2:
            raise Exhausted("a container gets two parts at most")
        return super().grant(request)


class CountsClaims(Tame):
    breaks = "claims-are-granted-again-alike", "a container got NUMBER="

    def grant(self, request: DeviceAllocate) -> Grant:
        return Grant(env={"NUMBER": str(next(_NUMBERS) if request.claim else 0)})


class NamesItsProcess(Tame):
    breaks = "claims-are-granted-alike-after-a-restart", "a container got PROCESS="

    def grant(self, request: DeviceAllocate) -> Grant:
        return Grant(env={"PROCESS": str(os.getpid())})


class NeverGoesOn(Tame):
    breaks = "a-grant-goes-on-after-a-kill", "is begun already"
    calls = count()

    def grant(self, request: DeviceAllocate) -> Grant:
        if request.claim is None:
            return super().grant(request)
        begun = self.host.state_dir / request.claim.uid
        if begun.exists():
            raise NotReady(f"claim {request.claim.name} is begun already")
        begun.touch()
        time.sleep(2 if next(self.calls) < 2 else 5)  # the kill follows the time of the first two, and may be late
        begun.unlink()
        return super().grant(request)


class MixesUp(Tame):
    breaks = "claims-at-once-get-what-each-gets-alone", "a container got PARTS="
    last: DeviceAllocate

    def grant(self, request: DeviceAllocate) -> Grant:
        self.last = request
        if request.claim is not None:
            time.sleep(1)  # kubelet's other call may be late
        return super().grant(self.last)


class Crooked(Tame):
    breaks = "claims-get-legal-edits", "the permissions 'rx' for /dev/null"

    def grant(self, request: DeviceAllocate) -> Grant:
        return Grant(nodes=(DeviceNode("/dev/null", permissions="rx"),))


class Annotates(Tame):
    breaks = "claims-get-no-annotations", "the annotation 'example.com/part', which is lost"

    def grant(self, request: DeviceAllocate) -> Grant:
        return Grant(annotations={"example.com/part": request.ids[0]})


# --- ends


class KeepsWhatItGave(Tame):
    breaks = "ended-claims-are-released", "is still warm"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        self.given: set[str] = set()

    def grant(self, request: DeviceAllocate) -> Grant:
        self.given.update(request.ids)
        return super().grant(request)

    def released(self, request: DeviceReleased) -> None:
        if self.given & set(request.ids):
            raise NotReady(f"{request.ids[0]} is still warm")


class NeedsAPod(Tame):
    breaks = "release-of-a-claim-is-repeatable", "there is no pod ''"

    def released(self, request: DeviceReleased) -> None:
        if not request.pod:
            raise NotFound(f"there is no pod {request.pod!r}")


class ForgetsTheHolder(Tame):
    breaks = "observers-take-nothing", "is not held any more"

    def __init__(self, config: object, host: Host) -> None:
        super().__init__(config, host)
        self.known: set[str] = set()
        self.owners: dict[str, str] = {}

    def grant(self, request: DeviceAllocate) -> Grant:
        if request.claim is not None:
            mine = request.claim.uid
            if mine in self.known and any(self.owners[name] != mine for name in request.ids):
                raise NotReady(f"{request.ids[0]} is not held any more")
            if mine not in self.known:
                self.known.add(mine)
                self.owners |= dict.fromkeys(request.ids, mine)
        return super().grant(request)

    def released(self, request: DeviceReleased) -> None:
        for name in request.ids:
            self.owners.pop(name, None)
