"""What every request of a hook carries.

Owns: the request's id and its deadline.
Refuses: to measure or to cancel: at the deadline the host answers the caller, whether or not the hook has returned.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

__all__ = ["Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The base of every request. Two requests are equal when they ask for the same, whatever their id and deadline.

    Attributes:
        id: the request id that log lines and error texts of this request carry; empty in a request that a test made.
        deadline: `time.monotonic()` at which the caller is answered without this hook; infinite if nobody waits.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_inf_nan": "constants"}

    id: str = field(default="", compare=False)
    deadline: float = field(default=math.inf, compare=False)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; 0 when it has passed."""
        return max(0.0, self.deadline - time.monotonic())
