"""Which names callers accept for what a plugin serves.

Owns: the rules for extended resources, executables on CNI_PATH, FlexVolume drivers, scheduler extenders and exclusive
claims, each with its sentence.
Refuses: to know what a node already serves.
"""

import re
from typing import Final

_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""At most 100 characters, so that `vendor~driver`, and the name of a temporary file for it, fit into 255 bytes."""
_CHARACTERS: Final = "letters, digits, '-', '_' and '.'"


def extended_resource(name: str) -> str:
    """Return the name of an extended resource.

    The rule is kubelet's: IsExtendedResourceName, whose quota form adds `requests.`.

    Raises:
        ValueError: which rule is broken.
    """
    prefix, slash, last = name.partition("/")
    if not slash or "kubernetes.io/" in name or name.startswith("requests."):
        raise ValueError(f"{name!r} is not an extended resource: it needs the form vendor.domain/name")
    if len(last) > 63 or not _QUALIFIED.fullmatch(last):
        raise ValueError(f"{name!r}: {last!r} must be letters, digits, '-', '_', '.', at most 63 of them")
    if len(prefix) > 244 or not _SUBDOMAIN.fullmatch(prefix):
        raise ValueError(f"{name!r}: {prefix!r} must be a lower-case DNS name of at most 244 characters")
    return name


def cni_executable(name: str) -> str:
    """Return the name of a CNI plugin, which is that of its executable.

    Raises:
        ValueError: it cannot be one.
    """
    if not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an executable on CNI_PATH: use up to 100 {_CHARACTERS}")
    return name


def exclusive_name(name: str) -> str:
    """Return the name of something that only one section may have.

    Raises:
        ValueError: it has characters that a message could not show.
    """
    if not _WORD.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an exclusive claim: use {_CHARACTERS}")
    return name


def extender_path(name: str) -> str:
    """Return the name of a scheduler extender, which is the path of its `urlPrefix`.

    Raises:
        ValueError: it cannot be one.
    """
    if len(name) > 253 or not all(_WORD.fullmatch(part) for part in name.split("/")):
        raise ValueError(
            f"{name!r} cannot be the path of an extender's urlPrefix: use {_CHARACTERS}, with '/' only between them"
        )
    return name


def flex_driver(name: str) -> str:
    """Return the name of a FlexVolume driver.

    Raises:
        ValueError: it cannot be one.
    """
    parts = name.split("/")
    if len(parts) > 2 or not all(_FILE_NAME.fullmatch(part) for part in parts):
        raise ValueError(
            f"{name!r} is not a FlexVolume driver: it needs the form vendor/driver, each up to 100 {_CHARACTERS}"
        )
    return name
