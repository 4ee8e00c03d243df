"""A plugin of cards in parts, which writes down what it is asked, and fails and waits as files in a folder say."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from nodeplug import Claim, Counters, Device, DeviceClaim, DeviceId, Grant, Host, Part, hookimpl

RESOURCE: Final = "example.com/part"
SIZE: Final = 1 << 30
SLOW: Final = "slow"
"""While there is such a file, `device_list` takes a second."""
HANG: Final = "hang"
"""While there is such a file, `device_allocate` and `device_released` do not return."""


class Cards:
    """Lists what `cards.json` says: by card the number of its parts, negative for one that smokes.

    `held/<claim>-<request>` has the ids of each request from its grant to its release; an id that is granted while
    another request has it is a line of `sold-twice`; `listings` grows with each list.
    """

    class Config(BaseModel, extra="forbid"):
        folder: Path
        mark: int = 0

    def __init__(self, config: Config, host: Host) -> None:
        del host
        self._folder = config.folder

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(RESOURCE)]

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        with (self._folder / "listings").open("a") as listings:
            listings.write(".")
        if (self._folder / SLOW).exists():
            time.sleep(1)
        cards: dict[str, int] = json.loads((self._folder / "cards.json").read_text())
        return [
            Device(
                DeviceId(f"{card}-{number}"),
                healthy=parts > 0,
                reason="" if parts > 0 else "it smokes",
                part=Part(DeviceId(card), {"memory": SIZE}),
            )
            for card, parts in cards.items()
            for number in range(abs(parts))
        ]

    @hookimpl
    def device_allocate(self, request: Any) -> Grant:
        self._wait("allocate")
        mine = f"{request.claim.uid}-{request.claim.request}"
        for path in (self._folder / "held").iterdir():
            try:
                both = set(path.read_text().split()) & set(request.ids)
            except FileNotFoundError:  # it is released in this moment
                continue
            if path.name != mine and both:
                with (self._folder / "sold-twice").open("a") as crimes:
                    crimes.write(f"{sorted(both)} of {path.name} to {mine}\n")
        (self._folder / "held" / mine).write_text(" ".join(request.ids))
        return Grant(env={f"IDS_{request.claim.request}": " ".join(request.ids)})

    @hookimpl
    def device_released(self, request: Any) -> None:
        self._wait("released")
        (self._folder / "held" / f"{request.claim.uid}-{request.claim.request}").unlink(missing_ok=True)

    def _wait(self, hook: str) -> None:
        if (self._folder / HANG).exists():
            (self._folder / f"in-{hook}").touch()
            while (self._folder / HANG).exists():
                time.sleep(0.005)


class Cut(Cards):
    """The same, of one card `card` that is given away whole, or as one of its seven instances."""

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        has, takes = {"slices": 7, "memory": 8 * SIZE}, {"slices": 1, "memory": SIZE}
        instances = [DeviceId(f"card-{number}") for number in range(7)]
        return [
            Device(DeviceId("card"), counters=Counters("card", has, has), attributes={"type": "card"}),
            *(Device(one, counters=Counters("card", has, takes), attributes={"type": "mig"}) for one in instances),
            Device(DeviceId("other"), attributes={"type": "other"}),
        ]
