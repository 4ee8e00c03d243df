"""What a plugin reports about itself, beyond the protocols.

Owns: the metric, as Prometheus understands it.
Refuses: rendering, scraping, and to check names (the exporter does that).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Metric", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number of a metric.

    Attributes:
        value: in the unit that the metric's name says.
        labels: what distinguishes it from the other samples.
    """

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a plugin.

    Attributes:
        name: lower case with underscores and its unit last, such as `gpu_memory_used_bytes`. It is exported with the
            prefix `nodeplug_` and, beside the labels of its samples, with the label `plugin`.
        help: one sentence.
        samples: every one has the same label names.
        kind: a counter only grows, and is exported with the suffix `_total`.
    """

    name: str
    help: str
    samples: Sequence[Sample]
    kind: Literal["gauge", "counter"] = "gauge"
