"""Which devices an expression of a class or a request selects.

Owns: the few forms of CEL that classes are written in, joined by `&&`.
Refuses: all other CEL: an expression that is not understood is an error, never a guess.

Source: kubernetes 1.36, dynamic-resource-allocation/cel/compile.go. As there, an attribute that a device does not have
is an error and not false, unless a condition before it has decided.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.fields import parse_quantity

Device = Mapping[str, Any]
_TEXT: Final = r'"([^"]*)"'
_NAME: Final = rf"(?:\.(\w+)|\[{_TEXT}\])"
_DRIVER: Final = re.compile(rf"device\.driver == {_TEXT}")
_SHARED: Final = re.compile(r"(!?)device\.allowMultipleAllocations(?: == (true|false))?")
_ATTRIBUTE: Final = re.compile(rf"device\.attributes\[{_TEXT}\]{_NAME} (==|!=) ({_TEXT}|true|false|-?\d+)")
_HAS: Final = re.compile(rf"{_TEXT} in device\.attributes\[{_TEXT}\]")
_CAPACITY: Final = re.compile(rf"device\.capacity\[{_TEXT}\]{_NAME}\.compareTo\(quantity\({_TEXT}\)\) (==|>=|<=|>|<) 0")
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class SelectorFailure(Exception):
    """An expression cannot be evaluated for a device; the claim is not allocated."""


def selects(expression: str, driver: str, device: Device) -> bool:
    """Return whether an expression selects a device of a driver.

    Raises:
        SelectorFailure: the device does not have what is compared.
        InvalidRequest: this stand-in does not know such an expression.
    """
    return all(_holds(one.strip(), driver, device) for one in expression.replace("'", '"').split("&&"))


def _holds(condition: str, driver: str, device: Device) -> bool:
    if condition.startswith("!(") and condition.endswith(")"):
        return not _holds(condition[2:-1], driver, device)
    if match := _DRIVER.fullmatch(condition):
        return match[1] == driver
    if match := _SHARED.fullmatch(condition):
        wanted = (match[2] != "false") != bool(match[1])
        return bool(device.get("allowMultipleAllocations")) is wanted
    if match := _HAS.fullmatch(condition):
        return _found(device.get("attributes"), match[2], match[1], driver) is not None
    if match := _ATTRIBUTE.fullmatch(condition):
        found = _there(device.get("attributes"), match[1], match[2] or match[3], driver, condition)
        (value,) = found.values()
        return bool(value == json.loads(match[5])) is (match[4] == "==")
    if match := _CAPACITY.fullmatch(condition):
        found = _there(device.get("capacity"), match[1], match[2] or match[3], driver, condition)
        return _COMPARED[match[5]](parse_quantity(str(found["value"])), parse_quantity(match[4]))
    raise InvalidRequest(f"the scheduler that is acted out knows no expression such as {condition!r}")


def _there(known: Any, domain: str, name: str, driver: str, condition: str) -> Mapping[str, Any]:
    found = _found(known, domain, name, driver)
    if found is None:
        raise SelectorFailure(f"CEL runtime error: no such key: {name} ({condition})")
    return found


def _found(known: Any, domain: str, name: str, driver: str) -> Mapping[str, Any] | None:
    """Return an attribute or a capacity; one without a domain is in the driver's."""
    found: Mapping[str, Mapping[str, Any]] = known or {}
    return found.get(f"{domain}/{name}", found.get(name) if domain == driver else None)
