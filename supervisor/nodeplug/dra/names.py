"""Names of drivers, pools and devices, as `resource.k8s.io/v1` allows them.

Owns: what a name becomes that is not allowed as it is: two that differ never become one.
Refuses: I/O, and what is named.

Source: kubernetes, pkg/apis/resource/validation: a driver is a DNS subdomain of at most 63 characters, a pool is DNS
subdomains joined by slashes, a device, a counter and a counter set are DNS labels, an attribute is a C identifier of at
most 32 characters, the value of a taint is the value of a label, and that of an attribute has at most 64 bytes.
"""

import re
from hashlib import sha256
from typing import Final

from nodeplug.contract.values import DeviceId, ResourceName

DOMAIN: Final = "nodeplug.io"
"""Of what nodeplug itself names: drivers, taints."""
RESOURCE: Final = "resource"
"""The attribute that each device has: the resource that its plugin claims, by which a class selects it."""
CALLS: Final = "dra:"
"""What calls are about that are made for claims: this, and the driver."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_LIMIT: Final = 63
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_DRIVER_LIMIT: Final = 63
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_IDENTIFIER_LIMIT: Final = 32
_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_TEXT_LIMIT: Final = 64
_DIGEST: Final = 8


def driver_name(section: str) -> str:
    """Return the name of the driver of a section: `gpu.nodeplug.io`."""
    return f"{_legal(section, _LABEL, _DRIVER_LIMIT - len(DOMAIN) - 1)}.{DOMAIN}"


def pool_name(node: str, resource: ResourceName) -> str:
    """Return the name of the pool of a resource on a node: `node-1/example.com/gpu`."""
    domain, _, name = resource.partition("/")
    return f"{node}/{domain}/{_legal(name, _LABEL, _LABEL_LIMIT)}"


def class_name(resource: ResourceName) -> str:
    """Return the name of the DeviceClass of a resource: `gpu.example.com`."""
    domain, _, name = resource.partition("/")
    return f"{_legal(name, _LABEL, _LABEL_LIMIT)}.{domain}"


def resource_value(resource: ResourceName) -> str:
    """Return a resource as the value of the attribute `RESOURCE` of its devices: at most 64 bytes."""
    if len(resource) <= _TEXT_LIMIT:
        return resource
    return f"{resource[: _TEXT_LIMIT - _DIGEST - 1]}-{_digest(resource)}"


def device_name(name: DeviceId) -> str:
    """Return the name of a device in its pool: its id, where that is a DNS label."""
    return _legal(name, _LABEL, _LABEL_LIMIT)


def counter_name(name: str) -> str:
    """Return the name of a counter, or of a set of counters: a DNS label."""
    return _legal(name, _LABEL, _LABEL_LIMIT)


def attribute_name(name: str) -> str:
    """Return the name of an attribute or a capacity; one without a domain is the driver's."""
    domain, slash, identifier = name.rpartition("/")
    qualified = slash and len(domain) <= _DRIVER_LIMIT and _SUBDOMAIN.fullmatch(domain)
    if _IDENTIFIER.fullmatch(identifier if qualified else name):
        return name
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    plain = plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"
    return f"{plain[: _IDENTIFIER_LIMIT - _DIGEST - 1]}_{_digest(name)}"


def taint_value(reason: str) -> str:
    """Return the reason of an unhealthy device as the value of its taint: words joined by dashes, without a digest."""
    slug = re.sub(r"[^A-Za-z0-9_.]+", "-", reason)[:_LABEL_LIMIT].strip("-_.")
    return slug if _VALUE.fullmatch(slug) else "unhealthy"


def _legal(name: str, allowed: re.Pattern[str], limit: int) -> str:
    """Return a name as it is if it is allowed, and else a similar one with a digest of it."""
    if allowed.fullmatch(name) and len(name) <= limit:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[: limit - _DIGEST - 1].strip("-")
    return f"{plain}-{_digest(name)}" if plain else f"x{_digest(name)}"


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
