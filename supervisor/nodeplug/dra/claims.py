"""ResourceClaims: what the scheduler has written for one driver (`resource.k8s.io/v1`), and kubelet's messages.

Owns: reading an allocation, whether a claim is still the one that kubelet means, and the answers to kubelet.
Refuses: I/O, and what becomes of an allocation (`preparation`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, NotFound, NotReady
from nodeplug.dra.values import Allocation, Share
from nodeplug.fields import parse_quantity
from nodeplug.pb import dra_v1_pb2 as pb

_UID: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9]{0,127}")
"""What is taken for a UID: it becomes part of a file's name."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim, as kubelet names it."""

    uid: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """Return it as messages name it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One line of the answer to NodePrepareResources."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]
    share_id: str = ""


def decode(claims: Sequence[pb.Claim]) -> list[ClaimReference]:
    """Read the claims of a request.

    Raises:
        InvalidRequest: one whose UID is none.
    """
    found = [ClaimReference(one.uid, one.namespace, one.name) for one in claims]
    for one in found:
        if not _UID.fullmatch(one.uid):
            raise InvalidRequest(f"kubelet names the claim {str(one)[:80]!r} with {one.uid[:80]!r}, which is no UID")
    return found


def encode_prepared(devices: Sequence[PreparedDevice]) -> pb.NodePrepareResourceResponse:
    """Write the answer for one claim; kubelet knows a request by its own name, without that of a subrequest."""
    made = pb.NodePrepareResourceResponse()
    for one in devices:
        added = made.devices.add(
            request_names=[one.request.partition("/")[0]],
            pool_name=one.pool,
            device_name=one.device,
            cdi_device_ids=one.cdi,
        )
        if one.share_id:
            added.share_id = one.share_id
    return made


def read(claim: Mapping[str, Any], wanted: ClaimReference, driver: str) -> Allocation:
    """Return what a claim has of a driver.

    Args:
        claim: the object, as the API server has it.
        wanted: what kubelet asks for.
        driver: its name.

    Raises:
        NotFound: the object is another one of the same name.
        NotReady: nothing is allocated.
        InvalidRequest: the allocation cannot be understood.
    """
    uid = str(claim["metadata"]["uid"])
    if uid != wanted.uid:
        raise NotFound(f"claim {wanted} was replaced: kubelet asks for the UID {wanted.uid}, and it has {uid} now")
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise NotReady(f"claim {wanted} is not allocated: the scheduler has taken the allocation back")
    devices = allocation.get("devices") or {}
    results = [one for one in devices.get("results") or () if one.get("driver") == driver]
    try:
        shares = tuple(_share(one, driver) for one in results)
        config = tuple(_config(devices.get("config") or (), driver))
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"the allocation of claim {wanted} cannot be read: {error!r}") from None
    if not shares:
        raise InvalidRequest(f"claim {wanted} has no device of the driver {driver}")
    return Allocation(wanted.uid, wanted.namespace, wanted.name, shares, config)


def _share(result: Mapping[str, Any], driver: str) -> Share:
    consumed = result.get("consumedCapacity") or {}
    return Share(
        request=str(result["request"]),
        pool=str(result["pool"]),
        device=str(result["device"]),
        share_id=str(result.get("shareID") or ""),
        consumed={name.removeprefix(f"{driver}/"): parse_quantity(str(amount)) for name, amount in consumed.items()},
        admin=bool(result.get("adminAccess")),
    )


def _config(entries: Sequence[Mapping[str, Any]], driver: str) -> Iterator[tuple[frozenset[str], Mapping[str, Any]]]:
    """Yield the parameters that are for a driver, those of classes first (the API server writes them in that order)."""
    for one in entries:
        opaque = one.get("opaque") or {}
        if opaque.get("driver") == driver:
            yield frozenset(map(str, one.get("requests") or ())), dict(opaque.get("parameters") or {})


def parameters_for(allocation: Allocation, request: str) -> tuple[Mapping[str, Any], ...]:
    """Return the parameters for a request: those without requests are for all, a main request's for its subrequests."""
    names = {request, request.partition("/")[0]}
    return tuple(what for requests, what in allocation.config if not requests or requests & names)
