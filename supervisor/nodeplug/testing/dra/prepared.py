"""What kubelet remembers of claims: `dra_manager_state`.

Owns: which pods use a claim, what its drivers answered, the file, and how the CDI names of a container come from it.
Refuses: calls: whoever makes them says what was answered.

Source: kubernetes 1.36, pkg/kubelet/cm/dra/claiminfo.go and state. That a claim is prepared is not in the file, and an
answer that comes again is appended: after a restart and a new sandbox, each CDI name is there twice (fixed on master).
The real file has a checksum, here it has none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

STATE: Final = "dra_manager_state"
Place = tuple[str, str]
"""Namespace and name of a claim."""


@dataclass
class DeviceState:
    """One device of an answer.

    Attributes:
        pool: of the device.
        device: its name there.
        share_id: which share of it; empty if it is not shared.
        requests: that it is for; none means all.
        cdi: names of CDI devices.
    """

    pool: str
    device: str
    share_id: str
    requests: list[str]
    cdi: list[str]


@dataclass
class ClaimInfo:
    """One claim.

    Attributes:
        namespace: of the claim.
        name: of the claim.
        uid: of the claim.
        pods: uids of the pods that use it.
        drivers: what each driver has answered so far.
        prepared: whether this kubelet has had all answers.
    """

    namespace: str
    name: str
    uid: str
    pods: list[str]
    drivers: dict[str, list[DeviceState]]
    prepared: bool = False

    def cdi_names(self, request: str = "") -> list[str]:
        """Return the CDI devices of a container that uses the claim, or one request of it, as often as there are."""
        return [
            name
            for states in self.drivers.values()
            for state in states
            if not request or not state.requests or request in state.requests
            for name in state.cdi
        ]


@dataclass
class Prepared:
    """All claims.

    Attributes:
        folder: where the file is.
        claims: by namespace and name.
    """

    folder: Path
    claims: dict[Place, ClaimInfo] = field(default_factory=dict)

    def of(self, places: Sequence[Place]) -> list[ClaimInfo]:
        """Return those of these claims that kubelet knows."""
        return [self.claims[place] for place in places if place in self.claims]

    def save(self) -> None:
        """Write the file."""
        listed = [asdict(one) for one in list(self.claims.values())]
        for one in listed:
            del one["prepared"]
        temporary = self.folder / f".{STATE}.new"
        temporary.write_text(json.dumps({"version": "v1", "claims": listed}), encoding="utf-8")
        temporary.replace(self.folder / STATE)

    def load(self) -> None:
        """Read the file, as a kubelet that starts does; none is an empty one."""
        path = self.folder / STATE
        found: Sequence[Mapping[str, object]] = json.loads(path.read_bytes())["claims"] if path.exists() else ()
        self.claims = {}
        for one in found:
            info = ClaimInfo(**one)  # type: ignore[arg-type] # written by `save`
            info.drivers = {
                name: [DeviceState(**state) for state in states]  # type: ignore[arg-type]
                for name, states in info.drivers.items()
            }
            self.claims[info.namespace, info.name] = info
