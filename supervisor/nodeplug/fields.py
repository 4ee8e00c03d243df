"""Field types for the configuration of plugins: durations, sizes as Kubernetes writes them, names of what is served.

    class Config(BaseModel, extra="forbid"):
        poll: Seconds = 10.0            # poll = "10s"
        size: Quantity = 64 << 20       # size = "64Mi"
        resource: ExtendedResource      # resource = "example.com/fuse"

Owns: durations in seconds; resource quantities of bytes (kubernetes, apimachinery/pkg/api/resource/quantity.go) in both
directions; the names that a plugin will claim, so that a wrong one is told with its key.
Refuses: negative sizes, and fractions of a byte.
"""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.names import cni_executable, extended_resource, flex_driver

_QUANTITY: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([KMGTPE]iB?|k|M|G|T|P|E|[eE][0-9]{1,2})?")
_LIMIT: Final = (1 << 63) - 1
_BINARY: Final = {"Ei": 6, "Pi": 5, "Ti": 4, "Gi": 3, "Mi": 2, "Ki": 1}
"""The largest first, as sizes are written."""
_DECIMAL: Final = {"k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(value: object) -> object:
    """Turn `"250ms"`, `"10s"`, `"5m"` or `"1h"` into seconds; numbers are seconds already.

    Raises:
        ValueError: any other text; pydantic adds the key.
    """
    if not isinstance(value, str):
        return value
    for unit in ("ms", "s", "m", "h"):
        number = value.removesuffix(unit)
        if number != value and number.replace(".", "", 1).isdecimal():
            return float(number) * _UNITS[unit]
    raise ValueError(f"{value!r} is not a duration; write a number with ms, s, m or h, such as '10s'")


def write_duration(seconds: float) -> str:
    """Write seconds as a file has them, in the largest unit that needs no fraction."""
    exact = Decimal(repr(seconds))
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if exact % size == 0:
            return f"{int(exact / size)}{unit}"
    text = f"{(exact * 1000).normalize():f}ms"
    return text if exact < 1 and parse_duration(text) == seconds else f"{exact:f}s"


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0, le=86400),
    PlainSerializer(write_duration, return_type=str, when_used="json"),
]
"""A duration in seconds, written as `"10s"` in the file."""


def parse_quantity(text: str) -> int:
    """Return the bytes that a quantity means; a fraction of a byte is rounded up, as Kubernetes does.

    Raises:
        InvalidRequest: no quantity of bytes.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:40]!r} is not a size; write bytes, or a number with Ki, Mi, Gi, Ti, k, M, G or T")
    number, suffix = Decimal(match[1]), (match[2] or "").removesuffix("B")
    if suffix in _BINARY:
        number *= 1024 ** _BINARY[suffix]
    elif suffix in _DECIMAL:
        number *= 1000 ** _DECIMAL[suffix]
    elif suffix:
        number = number.scaleb(int(suffix[1:]))
    if number > _LIMIT:
        raise InvalidRequest(f"{text[:40]!r} is more than 2^63-1 bytes")
    whole = int(number)
    return whole if whole == number else whole + 1


def show_quantity(size: int) -> str:
    """Write bytes for people: the largest binary unit that divides them, or one decimal."""
    for unit, power in _BINARY.items():
        if size >= (factor := 1024**power):
            return f"{size // factor}{unit}" if size % factor == 0 else f"{size / factor:.1f}{unit}"
    return f"{size} bytes"


def write_quantity(size: int) -> int | str:
    """Write bytes as a file has them, exactly: in the largest binary unit that divides them, else as a number."""
    found = (f"{size >> 10 * power}{unit}" for unit, power in _BINARY.items() if size and size % 1024**power == 0)
    return next(found, size)


def _from_config(value: object) -> object:
    if isinstance(value, str):
        try:
            return parse_quantity(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
    return value


Quantity = Annotated[
    int,
    BeforeValidator(_from_config),
    Field(ge=0),
    PlainSerializer(write_quantity, return_type=int | str, when_used="json"),
]
"""A configuration value: bytes, at least 0, or text such as "64Mi"."""

ExtendedResource = Annotated[str, AfterValidator(extended_resource)]
"""The name of a resource that pods ask for, such as "example.com/fuse"."""

CniExecutable = Annotated[str, AfterValidator(cni_executable)]
"""The name of a CNI plugin, such as "bridge"."""

FlexDriver = Annotated[str, AfterValidator(flex_driver)]
"""The name of a FlexVolume driver, such as "example.com/scratch"."""
