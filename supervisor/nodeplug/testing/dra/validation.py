"""What an API server refuses of a ResourceSlice.

Owns: the limits of `resource.k8s.io/v1`, with the server's paths and words.
Refuses: claims and classes: drivers do not write those.

Source: kubernetes 1.36, pkg/apis/resource/validation/validation.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.fields import parse_quantity
from nodeplug.testing.dra.capacity import on_grid

Object = Mapping[str, Any]
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NUMBER: Final = r"(0|[1-9]\d*)"
_WORD: Final = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_VERSION: Final = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_WORD}(\.{_WORD})*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_PLACES: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
_DEVICES, _FEWER_DEVICES, _NAMED, _TAINTS, _SETS, _COUNTERS, _VALUES = 128, 64, 32, 16, 8, 32, 10
_CONSUMED: Final = 2
"""Counter sets of which one device takes."""
_LONGEST: Final = 64
"""Bytes of a string or a version."""


def mistakes_of(found: Object, before: Object | None) -> list[str]:
    """Return why a server would refuse a ResourceSlice; empty if it would not.

    Args:
        found: the slice.
        before: the one that it replaces.
    """
    spec = found.get("spec") or {}
    return [
        *_of_names(found, spec, (before or {}).get("spec")),
        *_of_places(spec),
        *_of_counts(spec),
        *(one for index, device in enumerate(spec.get("devices") or ()) for one in _of_device(index, device)),
        *(one for index, known in enumerate(spec.get("sharedCounters") or ()) for one in _of_set(index, known)),
    ]


def _of_names(found: Object, spec: Object, before: Object | None) -> Iterator[str]:
    name, driver = str(found["metadata"].get("name", "")), str(spec.get("driver", ""))
    pool = spec.get("pool") or {}
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case'
    if not driver:
        yield "spec.driver: Required value"
    elif len(driver) > 63:
        yield "spec.driver: Too long: may not be more than 63 bytes"
    elif not _SUBDOMAIN.fullmatch(driver.lower()):
        yield f'spec.driver: Invalid value: "{driver}": a lowercase RFC 1123 subdomain'
    words = str(pool.get("name", "")).split("/")
    if len(str(pool.get("name", ""))) > 253 or not all(map(_SUBDOMAIN.fullmatch, words)):
        yield f'spec.pool.name: Invalid value: "{pool.get("name", "")}": a lowercase RFC 1123 subdomain'
    if int(pool.get("resourceSliceCount") or 0) <= 0:
        yield "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"
    if int(pool.get("generation") or 0) < 0:
        yield "spec.pool.generation: Invalid value: must be greater than or equal to 0"
    if before is not None:
        yield from _of_what_never_changes(spec, before)


def _of_what_never_changes(spec: Object, before: Object) -> Iterator[str]:
    for path, was, now in (
        ("spec.driver", before.get("driver"), spec.get("driver")),
        ("spec.pool.name", before["pool"]["name"], (spec.get("pool") or {}).get("name")),
        ("spec.nodeName", before.get("nodeName"), spec.get("nodeName")),
    ):
        if was != now:
            yield f'{path}: Invalid value: "{now}": field is immutable'


def _of_places(spec: Object) -> Iterator[str]:
    named = [one for one in _PLACES if spec.get(one)]
    if len(named) != 1:
        yield f"spec: Required value: exactly one of {', '.join(map(repr, _PLACES))} is required, and {named} are given"


def _of_counts(spec: Object) -> Iterator[str]:
    devices, shared = spec.get("devices") or [], spec.get("sharedCounters") or []
    if spec.get("devices") is not None and spec.get("sharedCounters") is not None:
        yield "spec: Invalid value: only one of `sharedCounters` or `devices` is allowed"
    heavy = any(one.get("taints") or one.get("consumesCounters") for one in devices)
    most = _FEWER_DEVICES if heavy else _DEVICES
    if len(devices) > most:
        why = " if any device uses taints or consumes counters" if heavy else ""
        yield f"spec.devices: Too many: {len(devices)}: must have at most {most} items{why}"
    names = [str(one.get("name")) for one in devices]
    yield from (
        f'spec.devices[{index}].name: Duplicate value: "{name}"'
        for index, name in enumerate(names)
        if name in names[:index]
    )
    if len(shared) > _SETS:
        yield f"spec.sharedCounters: Too many: {len(shared)}: must have at most {_SETS} items"


def _of_set(index: int, known: Object) -> Iterator[str]:
    yield from _of_counters(f"spec.sharedCounters[{index}]", known, "name")


def _of_counters(path: str, known: Object, key: str) -> Iterator[str]:
    if not _LABEL.fullmatch(str(known.get(key, ""))):
        yield f'{path}.{key}: Invalid value: "{known.get(key, "")}": a lowercase RFC 1123 label'
    counters = known.get("counters") or {}
    if not 0 < len(counters) <= _COUNTERS:
        yield f"{path}.counters: Too many: {len(counters)}: must have between 1 and {_COUNTERS} items"
    for name, one in counters.items():
        if not _LABEL.fullmatch(name):
            yield f'{path}.counters: Invalid value: "{name}": a lowercase RFC 1123 label'
        yield from _of_amount(f"{path}.counters[{name}]", one)


def _of_device(index: int, device: Object) -> Iterator[str]:
    path = f"spec.devices[{index}]"
    if not _LABEL.fullmatch(str(device.get("name", ""))):
        yield f'{path}.name: Invalid value: "{device.get("name", "")}": a lowercase RFC 1123 label must consist of'
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacities) > _NAMED:
        yield f"{path}: Too many: the total number of attributes and capacities must not exceed {_NAMED}"
    for name, value in attributes.items():
        yield from _of_qualified(f"{path}.attributes", name)
        yield from _of_attribute(f"{path}.attributes[{name}]", value)
    for name, capacity in capacities.items():
        yield from _of_qualified(f"{path}.capacity", name)
        yield from _of_amount(f"{path}.capacity[{name}]", capacity)
        if policy := capacity.get("requestPolicy"):
            yield from _of_policy(f"{path}.capacity[{name}].requestPolicy", policy, device)
    consumed = device.get("consumesCounters") or []
    if len(consumed) > _CONSUMED:
        yield f"{path}.consumesCounters: Too many: {len(consumed)}: must have at most {_CONSUMED} items"
    for number, one in enumerate(consumed):
        yield from _of_counters(f"{path}.consumesCounters[{number}]", one, "counterSet")
    taints = device.get("taints") or []
    if len(taints) > _TAINTS:
        yield f"{path}.taints: Too many: {len(taints)}: must have at most {_TAINTS} items"
    for number, taint in enumerate(taints):
        yield from _of_taint(f"{path}.taints[{number}]", taint)


def _of_qualified(path: str, name: str) -> Iterator[str]:
    domain, slash, rest = name.rpartition("/")
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain)):
        yield f'{path}: Invalid value: "{name}": the domain must be a lowercase RFC 1123 subdomain of 63 characters'
    if len(rest) > 32 or not _IDENTIFIER.fullmatch(rest):
        yield f'{path}: Invalid value: "{name}": a valid C identifier of at most 32 characters is required'


def _of_attribute(path: str, value: Object) -> Iterator[str]:
    if len(value) != 1 or not set(value) <= {"int", "bool", "string", "version"}:
        yield f"{path}: Invalid value: exactly one value must be specified, and {sorted(value)} are"
        return
    ((kind, known),) = value.items()
    fits = {"int": int, "bool": bool, "string": str, "version": str}[kind]
    if not isinstance(known, fits) or (kind == "int" and isinstance(known, bool)):
        yield f"{path}.{kind}: Invalid value: {known!r}: is no {kind}"
    elif kind in {"string", "version"} and len(str(known).encode()) > _LONGEST:
        yield f"{path}.{kind}: Too long: may not be more than {_LONGEST} bytes"
    elif kind == "version" and not _VERSION.fullmatch(str(known)):
        yield f'{path}.version: Invalid value: "{known}": must be a string compatible with semver.org spec 2.0.0'


def _of_amount(path: str, found: Object) -> Iterator[str]:
    try:
        parse_quantity(str(found.get("value", "")))
    except InvalidRequest as error:
        yield f"{path}.value: Invalid value: {error.message}"


def _of_policy(path: str, policy: Object, device: Object) -> Iterator[str]:
    if not device.get("allowMultipleAllocations"):
        yield f"{path}: Forbidden: allowMultipleAllocations must be true"
    span, values, default = policy.get("validRange"), policy.get("validValues"), policy.get("default")
    if span and values:
        yield f"{path}: Forbidden: at most one of validValues and validRange"
    if (span or values) and default is None:
        yield f"{path}.default: Required value"
        return
    if span:
        yield from _of_range(path, span, default)
    if values:
        yield from _of_values(path, values, default)


def _of_range(path: str, span: Object, default: object) -> Iterator[str]:
    if "min" not in span:
        yield f"{path}.validRange.min: Required value"
    else:
        for name, amount in (("default", default), ("validRange.max", span.get("max"))):
            if amount is not None and not on_grid(amount, span):
                yield f'{path}.{name}: Invalid value: "{amount}": must be the minimum plus a multiple of the step'


def _of_values(path: str, values: Sequence[object], default: object) -> Iterator[str]:
    known = [parse_quantity(str(one)) for one in values]
    if len(known) > _VALUES:
        yield f"{path}.validValues: Too many: {len(known)}: must have at most {_VALUES} items"
    if known != sorted(known):
        yield f"{path}.validValues: Invalid value: must be sorted in ascending order"
    if parse_quantity(str(default)) not in known:
        yield f'{path}.default: Invalid value: "{default}": must be one of the valid values'


def _of_taint(path: str, taint: Object) -> Iterator[str]:
    domain, slash, name = str(taint.get("key", "")).rpartition("/")
    if (slash and not _SUBDOMAIN.fullmatch(domain)) or not name or not _VALUE.fullmatch(name):
        yield f'{path}.key: Invalid value: "{taint.get("key", "")}": name part must consist of alphanumeric characters'
    if not _VALUE.fullmatch(str(taint.get("value", ""))):
        yield f'{path}.value: Invalid value: "{taint.get("value")}": a valid label must be empty or consist of'
    if taint.get("effect") not in _EFFECTS:
        yield f'{path}.effect: Unsupported value: "{taint.get("effect", "")}": supported values: {", ".join(_EFFECTS)}'
