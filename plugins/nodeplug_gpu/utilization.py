"""How busy containers keep their cards.

Owns: the figures of it in metrics and in the document.
Refuses: to whom a process belongs (`containers` knows), and to measure (the driver did, with its poll).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from nodeplug import Metric, Sample
from nodeplug_gpu.cards import Telemetry, Utilization, Uuid
from nodeplug_gpu.holders import Container

_WHOLE: Final = 100


def in_percent(utilization: Utilization | None) -> Mapping[str, int] | None:
    """Return it for the document: a number for each engine of which it is known."""
    if utilization is None:
        return None
    return {name: share for name, share in asdict(utilization).items() if share is not None}


def metrics(
    telemetry: Mapping[Uuid, Telemetry], containers: Mapping[tuple[Container, Uuid], Utilization | None]
) -> Iterator[Metric]:
    """Yield the utilisation of cards and of containers, as ratios: 1 is all of a card's engine, all of the time."""
    cards = [
        Sample(share, {"card": uuid, "engine": engine})
        for uuid, one in telemetry.items()
        for engine, share in _ratios(one.utilization)
    ]
    yield Metric("gpu_utilization_ratio", "How busy an engine of a card is, from 0 to 1.", cards)
    used = [
        Sample(
            share,
            {"card": uuid, "namespace": of.namespace, "pod": of.pod, "container": of.name, "engine": engine},
        )
        for (of, uuid), one in containers.items()
        for engine, share in _ratios(one)
    ]
    yield Metric(
        "gpu_container_utilization_ratio", "How busy a container keeps an engine of a card, from 0 to 1.", used
    )


def _ratios(utilization: Utilization | None) -> Iterator[tuple[str, float]]:
    for engine, percent in (in_percent(utilization) or {}).items():
        yield engine, percent / _WHOLE
