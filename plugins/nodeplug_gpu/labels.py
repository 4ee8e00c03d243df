"""Labels of the Node about its cards, under the names of NVIDIA's GPU Feature Discovery.

Owns: from a snapshot and the configuration to labels, as its current release writes them (k8s-device-plugin v0.20,
internal/lm).
Refuses: its labels about vGPU, IMEX, the time, and the engines and multiprocessors of MIG instances: this plugin does
not look at those. Of cards of several models the first one counts, where the original takes any.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from nodeplug_gpu.cards import Card, MigInstance, Snapshot
from nodeplug_gpu.config import GpuConfig, Memory, Mig, Replicas
from nodeplug_gpu.profiles import default_name

_GPU: Final = "nvidia.com/gpu"
_MIB: Final = 1 << 20
_UNFIT: Final = re.compile(r"[^-A-Za-z0-9_. ]")
_SLICES: Final = re.compile(r"(?:(\d+)c\.)?(\d+)g\.")
_FAMILIES: Final[Mapping[int, str]] = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}
_MODES: Final[Mapping[str, str]] = {"0x030000": "graphics", "0x030200": "compute"}
"""By PCI class: a VGA controller, a 3D controller."""


def labels(snapshot: Snapshot, config: GpuConfig, sysfs: Path = Path("/sys")) -> dict[str, str]:
    """Return the labels; none on a node without cards. Reads sysfs."""
    cards = snapshot.cards
    if snapshot.state != "running" or not cards:
        return {}
    made = dict(_versions(snapshot))
    made["nvidia.com/gpu.machine"] = sanitised(_text(sysfs / "class/dmi/id/product_name") or "unknown")
    made["nvidia.com/gpu.mode"] = _mode(cards, sysfs)
    made["nvidia.com/mig.capable"] = _word(snapshot.mig_capable or any(card.mig for card in cards))
    made["nvidia.com/mps.capable"] = _word(
        any(isinstance(one, Memory | Replicas) and one.mps is not None for one in config.resources)
    )
    made |= _cards(cards, config)
    for one in config.resources:
        if isinstance(one, Memory) and one.oversubscribe > 1:
            made[f"nodeplug.io/{one.resource.rpartition('/')[2]}.oversubscribe"] = f"{one.oversubscribe:g}"
    entry = next((one for one in config.resources if isinstance(one, Mig) and one.strategy != "none"), None)
    if entry is not None:
        made |= {"nvidia.com/mig.strategy": entry.strategy, **_instances(cards, entry)}
    return {key: value for key, value in made.items() if len(value) <= 63}


def sanitised(text: str) -> str:
    """Return a name as a label has it: other characters go, and blanks become dashes."""
    return "-".join(_UNFIT.sub("", text).split()).strip("-_.")


def family(capability: tuple[int, int]) -> str:
    """Return the name of an architecture by its compute capability."""
    major, minor = capability
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return _FAMILIES.get(major, "undefined")


def _versions(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the versions of driver and CUDA, under the names of today and those that are to go."""
    parts = snapshot.driver_version.split(".")
    if 2 <= len(parts) <= 3 and all(part.isdecimal() for part in parts):
        major, minor, revision = (*parts, "")[:3]
        yield from (("nvidia.com/cuda.driver.major", major), ("nvidia.com/cuda.driver.minor", minor))
        yield "nvidia.com/cuda.driver.rev", revision
        yield "nvidia.com/cuda.driver-version.major", major
        yield "nvidia.com/cuda.driver-version.minor", minor
        yield "nvidia.com/cuda.driver-version.revision", revision
        yield "nvidia.com/cuda.driver-version.full", snapshot.driver_version
    if snapshot.cuda_version:
        major, minor = str(snapshot.cuda_version // 1000), str(snapshot.cuda_version % 1000 // 10)
        yield from (("nvidia.com/cuda.runtime.major", major), ("nvidia.com/cuda.runtime.minor", minor))
        yield "nvidia.com/cuda.runtime-version.major", major
        yield "nvidia.com/cuda.runtime-version.minor", minor
        yield "nvidia.com/cuda.runtime-version.full", f"{major}.{minor}"


def _cards(cards: Sequence[Card], config: GpuConfig) -> dict[str, str]:
    """Return the labels of whole cards; those without MIG go before those with."""
    counts = Counter(card.model for card in cards)
    card = next((one for one in cards if not one.mig), cards[0])
    shared = next((one for one in config.resources if isinstance(one, Replicas) and one.resource == _GPU), None)
    if card.mig:
        shared = None
    product = sanitised(card.model)
    made = {
        "product": f"{product}-SHARED" if shared is not None else product,
        "count": str(counts[card.model]),
        "replicas": "0" if card.mig else str(shared.replicas) if shared is not None else "1",
        "sharing-strategy": "none" if shared is None else "time-slicing" if shared.mps is None else "mps",
    }
    if card.memory:
        made["memory"] = str(card.memory // _MIB)
    major, minor = card.compute_capability
    if major:
        made |= {"family": family((major, minor)), "compute.major": str(major), "compute.minor": str(minor)}
    return {f"{_GPU}.{key}": value for key, value in made.items()}


def _instances(cards: Sequence[Card], entry: Mig) -> dict[str, str]:
    """Return the labels of MIG instances: by profile, or in place of those of whole cards."""
    every = [(card, one) for card in cards if card.mig for one in card.instances]
    by_profile: dict[str, list[tuple[Card, MigInstance]]] = {}
    for card, one in every:
        by_profile.setdefault(one.profile, []).append((card, one))
    if entry.strategy == "mixed":
        return {
            key: value
            for profile, found in by_profile.items()
            for key, value in _of_profile(default_name(profile), found, entry.replicas_of(profile)).items()
        }
    migs = [card for card in cards if card.mig]
    if not migs:
        return {}
    if len(by_profile) != 1 or len(migs) != len(cards) or not all(card.instances for card in migs):
        product = f"{sanitised(migs[0].model)}-MIG-INVALID"
        invalid = {"product": product, "count": "0", "replicas": "0", "sharing-strategy": "", "memory": "0"}
        return {f"{_GPU}.{key}": value for key, value in invalid.items()}
    ((profile, found),) = by_profile.items()
    return _of_profile(_GPU, found, entry.replicas_of(profile))


def _of_profile(resource: str, found: Sequence[tuple[Card, MigInstance]], replicas: int) -> dict[str, str]:
    card, one = found[0]
    profile = one.profile.replace("+", ".")
    product = f"{sanitised(card.model)}-MIG-{sanitised(profile)}"
    made = {
        "product": product if replicas == 1 else f"{product}-SHARED",
        "count": str(len(found)),
        "replicas": str(replicas),
        "sharing-strategy": "none" if replicas == 1 else "time-slicing",
        "memory": str(one.memory // _MIB),
    }
    if (match := _SLICES.match(profile)) is not None:
        made |= {"slices.gi": match[2], "slices.ci": match[1] or match[2]}
    return {f"{resource}.{key}": value for key, value in made.items()}


def _mode(cards: Sequence[Card], sysfs: Path) -> str:
    classes = {_text(sysfs / "bus/pci/devices" / card.pci / "class") if card.pci else "" for card in cards}
    return _MODES.get(classes.pop(), "unknown") if len(classes) == 1 else "unknown"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:200]
    except OSError:
        return ""


def _word(value: bool) -> str:
    return "true" if value else "false"
