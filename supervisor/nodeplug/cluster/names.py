"""What may be written into the cluster's objects under which name.

Owns: the rules of the API server for keys and values, each with its sentence, and what no plugin may touch: keys of
Kubernetes itself, conditions of kubelet, ConfigMaps of other nodes.
Refuses: to change a value so that it fits; a plugin is told what is wrong.

Source: k8s.io/apimachinery, pkg/util/validation/validation.go.
"""

import re
from typing import Final

_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_DATA: Final = re.compile(r"[-._A-Za-z0-9]{1,253}")
_RESERVED: Final = ("kubernetes.io", "k8s.io")


def fault_of_key(key: str, *, domain: bool = True) -> str:
    """Return why a label, annotation or condition may not have this name; empty if it may.

    Args:
        key: the name.
        domain: it needs one.
    """
    prefix, slash, name = key.rpartition("/")
    if domain and not slash:
        return f"{key!r} needs a domain, as in example.com/name"
    if slash and (len(prefix) > 253 or not _DOMAIN.fullmatch(prefix)):
        return f"{key!r}: {prefix!r} is no domain in lower case"
    if any(prefix == one or prefix.endswith(f".{one}") for one in _RESERVED):
        return f"{key!r} belongs to Kubernetes: choose a domain of your own"
    if len(name) > 63 or not _PART.fullmatch(name):
        return f"{key!r}: {name!r} must be letters, digits, '-', '_', '.', at most 63 of them"
    return ""


def fault_of_label(key: str, value: str) -> str:
    """Return why a label cannot be set; empty if it can."""
    if value and (len(value) > 63 or not _PART.fullmatch(value)):
        return f"label {key!r} cannot be {value!r}: letters, digits, '-', '_', '.', at most 63 of them"
    return fault_of_key(key)


def fault_of_word(word: str) -> str:
    """Return why something cannot be a reason; empty if it can."""
    return "" if len(word) <= 128 and _WORD.fullmatch(word) else f"{word!r} cannot be a reason: write it in CamelCase"


def fault_of_config_map(namespace: str, name: str, node: str) -> str:
    """Return why this node may not write a ConfigMap; empty if it may."""
    if not name.endswith(f"-{node}") or len(name) > 253 or not _DOMAIN.fullmatch(name):
        return (
            f"the name of ConfigMap {name!r} must be in lower case and end with -{node}: others belong to other nodes"
        )
    return "" if _DOMAIN.fullmatch(namespace) else f"{namespace!r} is no namespace"


def fault_of_data(key: str) -> str:
    """Return why a ConfigMap cannot have a key; empty if it can."""
    return "" if _DATA.fullmatch(key) else f"{key!r} cannot be a key of a ConfigMap"


def label_value(text: str) -> str:
    """Return the label value that is nearest to a text of our own, such as a version."""
    return re.sub(r"[^-A-Za-z0-9_.]", "-", text)[:63].strip("-_.")
