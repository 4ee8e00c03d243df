"""The search for devices: all requests of all claims of a pod, or nothing.

Owns: first fit with going back, counts, alternatives, constraints, tolerations, and results as a claim has them.
Refuses: the API server: claims and slices come in, results go out.

Source: kubernetes 1.36, dynamic-resource-allocation/structured/internal/*/allocator_*.go.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeplug.testing.dra.accounts import Accounts
from nodeplug.testing.dra.capacity import consumed
from nodeplug.testing.dra.pools import Candidate, Key
from nodeplug.testing.dra.quantities import canonical
from nodeplug.testing.dra.selectors import selects

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Need:
    """What a request wants, or one of what it would take instead.

    Attributes:
        claim: whose request it is, by index.
        request: `name`, or `name/subrequest`.
        spec: its `exactly`.
        expressions: of its class and of itself.
        constraints: of the claim, as far as they are about this request.
    """

    claim: int
    request: str
    spec: Object = field(hash=False)
    expressions: tuple[str, ...]
    constraints: tuple[Object, ...] = field(default=(), hash=False)

    @property
    def amounts(self) -> Mapping[str, str]:
        """What it asks for of each device, by capacity."""
        found: Mapping[str, str] = (self.spec.get("capacity") or {}).get("requests") or {}
        return found


Chosen = tuple[tuple[Need, Candidate], ...]


@dataclass
class Search:
    """One attempt.

    Attributes:
        candidates: in the order in which they are tried.
        refusals: why devices were not taken, by request.
    """

    candidates: Sequence[Candidate]
    refusals: dict[str, dict[Key, str]] = field(default_factory=dict)

    def requests(self, todo: Sequence[Sequence[Need]], accounts: Accounts, done: Chosen = ()) -> Chosen | None:
        """Serve requests, each with the first of its alternatives that leaves enough for the others; None: impossible.

        Raises:
            SelectorFailure: an expression has no value for a device.
        """
        if not todo:
            return done
        for need in todo[0]:
            fitting = [one for one in self.candidates if self._fits(need, one)]
            count = len(fitting) if need.spec.get("allocationMode") == "All" else int(need.spec.get("count") or 1)
            if count and (found := self._devices(need, fitting, count, todo[1:], accounts, done)) is not None:
                return found
        return None

    def _devices(
        self,
        need: Need,
        fitting: Sequence[Candidate],
        count: int,
        rest: Sequence[Sequence[Need]],
        accounts: Accounts,
        done: Chosen,
    ) -> Chosen | None:
        """Take so many devices, each once, in their order; never two shares of one."""
        if not count:
            return self.requests(rest, accounts, done)
        for index, device in enumerate(fitting):
            if not self._free(need, device, accounts, done):
                continue
            taken = accounts
            if not need.spec.get("adminAccess"):
                taken = accounts.plus(device.key, consumed(device.spec, need.amounts) if device.shared else None)
            further = fitting[index + 1 :]
            found = self._devices(need, further, count - 1, rest, taken, (*done, (need, device)))
            if found is not None:
                return found
        return None

    def _fits(self, need: Need, device: Candidate) -> bool:
        if not all(selects(one, device.driver, device.spec) for one in need.expressions):
            return False
        if taint := _refusing_taint(device.spec, need.spec.get("tolerations") or ()):
            self._note(need, device, f"has the taint {taint}")
            return False
        return True

    def _free(self, need: Need, device: Candidate, accounts: Accounts, done: Chosen) -> bool:
        if need.spec.get("adminAccess"):
            return True
        why = accounts.refusal(device, need.amounts, self.candidates) or _broken_constraint(need, device, done)
        if why:
            self._note(need, device, why)
        return not why

    def _note(self, need: Need, device: Candidate, why: str) -> None:
        self.refusals.setdefault(need.request, {}).setdefault(device.key, why)

    def __str__(self) -> str:
        """Say why devices were refused; of devices that nothing selects there is nothing to say."""
        told = [
            f"request {request}: {'/'.join(key)} {why}"
            for request, by_device in self.refusals.items()
            for key, why in by_device.items()
        ]
        return "; ".join(told) or "no device is selected"


def needs_of(claim: Object, index: int, classes: Mapping[str, Object]) -> Iterator[list[Need]]:
    """Yield each request of a claim with its alternatives.

    Raises:
        LookupError: there is no such class.
    """
    devices = claim["spec"].get("devices") or {}
    for request in devices.get("requests") or ():
        name = str(request["name"])
        parts = request.get("firstAvailable") or ()
        named = [(f"{name}/{part['name']}", part) for part in parts] or [(name, request["exactly"])]
        yield [
            Need(index, path, spec, _expressions(spec, classes), _constraints(devices, name, path))
            for path, spec in named
        ]


def results_for(chosen: Chosen, index: int) -> list[dict[str, Any]]:
    """Return the results of one claim, as its status has them."""
    return [_result(need, device) for need, device in chosen if need.claim == index]


def config_for(claim: Object, needs: Sequence[Need], classes: Mapping[str, Object]) -> list[dict[str, Any]]:
    """Return the configuration of an allocation: what classes say first, then what the claim says."""
    found: list[dict[str, Any]] = []
    for need in needs:
        known = classes[need.spec["deviceClassName"]].get("spec", {}).get("config") or ()
        found += [{**one, "source": "FromClass", "requests": [need.request]} for one in known]
    claims = (claim["spec"].get("devices") or {}).get("config") or ()
    return [*found, *({**one, "source": "FromClaim"} for one in claims)]


def _result(need: Need, device: Candidate) -> dict[str, Any]:
    driver, pool, name = device.key
    found: dict[str, Any] = {"request": need.request, "driver": driver, "pool": pool, "device": name}
    if need.spec.get("tolerations"):
        found["tolerations"] = need.spec["tolerations"]
    if need.spec.get("adminAccess"):
        return {**found, "adminAccess": True}
    if device.shared:
        amounts = consumed(device.spec, need.amounts) or {}
        found |= {"shareID": str(uuid.uuid4()), "consumedCapacity": _written(amounts)}
    return found


def _written(amounts: Mapping[str, int]) -> dict[str, str]:
    binary = {name: f"{size >> 10}Ki" if size and size % 1024 == 0 else str(size) for name, size in amounts.items()}
    return {name: canonical(amount) for name, amount in binary.items()}


def _expressions(spec: Object, classes: Mapping[str, Object]) -> tuple[str, ...]:
    name = str(spec["deviceClassName"])
    if name not in classes:
        raise LookupError(f"could not retrieve device class {name}")
    selectors = [*(classes[name].get("spec", {}).get("selectors") or ()), *(spec.get("selectors") or ())]
    return tuple(str(one["cel"]["expression"]) for one in selectors)


def _constraints(devices: Object, *names: str) -> tuple[Object, ...]:
    known = devices.get("constraints") or ()
    return tuple(one for one in known if not one.get("requests") or not set(names).isdisjoint(one["requests"]))


def _broken_constraint(need: Need, device: Candidate, done: Chosen) -> str:
    for constraint in need.constraints:
        same, differs = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
        name = str(same or differs)
        value = _attribute(device, name)
        others = [
            _attribute(other, name)
            for earlier, other in done
            if earlier.claim == need.claim and constraint in earlier.constraints
        ]
        if value is None or (any(one != value for one in others) if same else value in others):
            return f"does not keep the constraint on {name}"
    return ""


def _attribute(device: Candidate, name: str) -> object:
    known = device.spec.get("attributes") or {}
    found = known.get(name) or known.get(name.removeprefix(f"{device.driver}/"))
    return None if found is None else next(iter(found.values()))


def _refusing_taint(device: Object, tolerations: Sequence[Object]) -> str:
    for taint in device.get("taints") or ():
        if taint["effect"] != "None" and not any(_tolerates(one, taint) for one in tolerations):
            return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    if toleration.get("key") not in {None, "", taint["key"]}:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
