"""Whether labels, or a node, fit what an object asks for.

Owns: label selectors, and the node affinity of PersistentVolumes.
Refuses: field selectors of requests: the server reads those.

Source: k8s.io/apimachinery, pkg/labels/selector.go; k8s.io/component-helpers, scheduling/corev1/nodeaffinity.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects labels; an empty one selects all."""
    exact = selector.get("matchLabels") or {}
    found = all(labels.get(key) == value for key, value in exact.items())
    return found and all(_fits(one, labels) for one in selector.get("matchExpressions") or ())


def on_node(affinity: Mapping[str, Any] | None, node: Mapping[str, Any]) -> bool:
    """Return whether a volume with this affinity can be used on a node; without any it can be used on every node."""
    if affinity is None or affinity.get("required") is None:
        return True
    metadata = node.get("metadata") or {}
    labels, fields = metadata.get("labels") or {}, {"metadata.name": metadata.get("name", "")}
    for term in affinity["required"].get("nodeSelectorTerms") or ():
        expressions, by_field = term.get("matchExpressions") or (), term.get("matchFields") or ()
        if not expressions and not by_field:
            continue  # an empty term fits no node
        if all(_fits(one, labels) for one in expressions) and all(_fits(one, fields) for one in by_field):
            return True
    return False


def _fits(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    operator = _OPERATORS.get(expression["operator"])
    return operator is not None and operator(value, values)


def _compared(value: str | None, values: Any, larger: bool) -> bool:
    try:
        left, right = int(str(value)), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if larger else left < right


_OPERATORS: Final[Mapping[str, Callable[[str | None, Any], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compared(value, values, larger=True),
    "Lt": lambda value, values: _compared(value, values, larger=False),
}
