"""What a migration would do: every FlexVolume of a cluster, what it becomes, and why it cannot.

Owns: the questions to the cluster, and the reasons.
Refuses: to change anything, and to know what plugins mean by their options: it asks for that (`Identify`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, NotFound, PluginError
from nodeplug.kubeapi.client import Client, Listed
from nodeplug.kubeapi.resources import CSI_DRIVERS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Object
from nodeplug.migration.exchange import users_among
from nodeplug.migration.volumes import PHASES, affinity_to, as_csi, claim_of, flex_driver, options_of

Identify = Callable[[str, Mapping[str, str]], tuple[str, str]]
"""From a FlexVolume driver and options to the CSI driver and the volumeHandle; raises PluginError."""

_REFERENCE: Final = "nodePublishSecretRef"


@dataclass(frozen=True, slots=True)
class Planned:
    """One volume.

    Attributes:
        before: the PersistentVolume as it is.
        after: as it would be; empty if it cannot.
        claim: the claim that has it; empty if none has.
        problem: why it is not migrated now; empty if it can be.
    """

    before: Object
    after: Object
    claim: Object
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Describe it."""
        namespace, name, _ = claim_of(self.before)
        csi = (self.after.get("spec") or {}).get("csi") or {}
        return {
            "volume": self.before["metadata"]["name"],
            "claim": f"{namespace}/{name}" if name else "",
            "flex_driver": flex_driver(self.before),
            "csi_driver": csi.get("driver", ""),
            "handle": csi.get("volumeHandle", ""),
            "on_one_node": "nodeAffinity" in (self.after.get("spec") or self.before["spec"]),
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which volumes, and what is said of them.

    Attributes:
        driver: the FlexVolume driver, `vendor/driver`; empty means all that are served.
        claims: `namespace/name` of claims; none means all.
        node: where volumes are that do not say it; empty leaves them without an affinity.
    """

    driver: str = ""
    claims: Collection[str] = ()
    node: str = ""

    def means(self, volume: Mapping[str, Any]) -> bool:
        """Whether a FlexVolume is among them."""
        namespace, name, _ = claim_of(volume)
        by_driver = not self.driver or flex_driver(volume) == self.driver
        return by_driver and (not self.claims or f"{namespace}/{name}" in self.claims)

    def without(self, volumes: Iterable[Mapping[str, Any]]) -> "Wanted | None":
        """Return what is left when these volumes are known; None when that is nothing."""
        if not self.claims:
            return self
        known = {"/".join(claim_of(one)[:2]) for one in volumes}
        left = tuple(one for one in self.claims if one not in known)
        return replace(self, claims=left) if left else None


async def plan(
    client: Client, wanted: Wanted, identify: Identify, begun: Iterable[Mapping[str, Any]] = ()
) -> list[Planned]:
    """Return every FlexVolume that is wanted, in the order of names.

    Args:
        client: who asks.
        wanted: which ones.
        identify: asks what options mean.
        begun: volumes of CSI that a migration was about to make.

    Raises:
        NotFound: a claim that was named has no such volume, or the node does not exist.
        PluginError: the API server refused.
    """
    affinity = affinity_to(await client.get(NODES, wanted.node)) if wanted.node else None
    drivers = {one["metadata"]["name"] for one in await client.list(CSI_DRIVERS)}
    found: list[Planned] = []
    pods: dict[str, Listed] = {}
    volumes = await client.list(PERSISTENT_VOLUMES)
    others = [*begun, *(one for one in volumes if one["spec"].get("csi"))]
    for volume in volumes:
        if not flex_driver(volume) or not wanted.means(volume):
            continue
        namespace, name, _ = claim_of(volume)
        if name and namespace not in pods:
            pods[namespace] = await client.list(PODS, namespace)
        one = await _planned(client, volume, identify, drivers, affinity)
        users = users_among(pods[namespace], volume) if name else []
        if not one.problem:
            used = f"in use by {', '.join(users)}: scale it down first" if users else ""
            one = replace(one, problem=_shared(one.after, others) or used)
            others.append(one.after)
        found.append(one)
    told = {one.as_dict()["claim"] for one in found}
    missing = [one for one in wanted.claims if one not in told]
    if missing:
        raise NotFound(f"no FlexVolume has the claim {', '.join(missing)}")
    return found


async def _planned(
    client: Client,
    volume: Object,
    identify: Identify,
    drivers: Collection[str],
    affinity: Mapping[str, Any] | None,
) -> Planned:
    after: Object = {}
    claim: Object = {}
    try:
        driver, handle = identify(flex_driver(volume), options_of(volume))
        after = as_csi(volume, driver, handle, affinity)
        _refuse_phase(volume)
        if driver not in drivers:
            command = f"nodeplug csi manifests --driver {driver} | kubectl apply -f -"
            raise InvalidRequest(f"the cluster has no CSIDriver {driver}: `{command}`")
        claim = await _claim(client, volume)
    except PluginError as error:
        return Planned(volume, after, claim, str(error))
    return Planned(volume, after, claim)


def _shared(made: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """Return why a volume must not have its handle: staged with one secret, it would serve pods with another."""
    mine = made["spec"]["csi"]
    for other in others:
        csi, name = other["spec"]["csi"], other["metadata"]["name"]
        same = (csi["driver"], csi["volumeHandle"]) == (mine["driver"], mine["volumeHandle"])
        if same and name != made["metadata"]["name"] and csi.get(_REFERENCE) != mine.get(_REFERENCE):
            return (
                f"PersistentVolume {name} has the same volumeHandle {mine['volumeHandle']!r} and another secret: pods "
                "could get the volume of the other secret; make it by hand, with a volumeHandle of its own"
            )
    return ""


def _refuse_phase(volume: Object) -> None:
    phase = (volume.get("status") or {}).get("phase", "Pending")
    if volume["metadata"].get("deletionTimestamp"):
        raise InvalidRequest("it is being deleted")
    if phase not in PHASES:
        raise InvalidRequest(f"it is {phase}, and only volumes that are Bound or Available are migrated")


async def _claim(client: Client, volume: Object) -> Object:
    namespace, name, uid = claim_of(volume)
    if not name:
        return {}
    found = await client.get(PERSISTENT_VOLUME_CLAIMS, name, namespace)
    if not uid or found["metadata"]["uid"] != uid:
        raise InvalidRequest(f"its claim {namespace}/{name} is another one by now")
    return found
