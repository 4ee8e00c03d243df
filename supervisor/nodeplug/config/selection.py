"""Which sections are for this node: one configuration holds for all nodes of a cluster.

Owns: `node_selector` and `node_names` of a section, and the labels that this node was last known to have.
Refuses: to ask the API server for them (`nodeplug.node_labels`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from nodeplug.config.models import Configuration, PluginSection
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.journal import write_durably

NAME: Final = "node-labels.json"


@dataclass(frozen=True, slots=True)
class Node:
    """What sections choose a node by.

    Attributes:
        name: in the cluster; empty if a check was asked for without one.
        labels: of its Node object; None if they were never known.
    """

    name: str
    labels: Mapping[str, str] | None = None

    def lacks(self, section: PluginSection) -> str:
        """Return why a section is not for this node, or nothing if it is."""
        if section.node_names and not self.name:
            return "node_names asks for the name of the node, and none was given: say --node-name"
        if section.node_names and not any(fnmatchcase(self.name, one) for one in section.node_names):
            return f"node_names has no pattern for {self.name}"
        if section.node_selector and self.labels is None:
            return "node_selector asks for labels, and those of this node are not known yet"
        labels = self.labels or {}
        wrong = {name: value for name, value in section.node_selector.items() if labels.get(name) != value}
        for name, value in wrong.items():
            found = f"{name}={labels[name]}" if name in labels else f"no label {name}"
            return f"node_selector asks for {name}={value}, and this node has {found}"
        return ""


def for_node(configuration: Configuration, node: Node) -> tuple[Configuration, Mapping[str, str]]:
    """Return the configuration without the sections for other nodes, and why those are left out."""
    reasons = {name: node.lacks(section) for name, section in configuration.plugins.items() if section.enabled}
    others = {name: reason for name, reason in reasons.items() if reason}
    if not others:
        return configuration, {}
    plugins = {
        name: section.model_copy(update={"enabled": False}) if name in others else section
        for name, section in configuration.plugins.items()
    }
    return configuration.model_copy(update={"plugins": plugins}), others


def by_labels(configuration: Configuration) -> bool:
    """Whether any section chooses nodes by label."""
    return any(section.node_selector for section in configuration.plugins.values())


def known(state: Path, name: str) -> Node:
    """Return the node of this name with the labels that were last recorded."""
    try:
        recorded = json.loads(read_bounded(state / NAME))
        if recorded["node"] == name:
            return Node(name, {str(label): str(value) for label, value in recorded["labels"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return Node(name)


def record(state: Path, node: Node) -> None:
    """Write down the labels of this node, for starts without an API server.

    Raises:
        PluginError: the folder cannot be written.
    """
    text = json.dumps({"node": node.name, "labels": node.labels}, sort_keys=True)
    write_durably(state / NAME, text.encode())


def parse_labels(text: str) -> Mapping[str, str]:
    """Read labels as kubectl takes them: `NAME=VALUE,NAME=VALUE`.

    Raises:
        InvalidRequest: a part is no label.
    """
    found = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{part!r} is no label; write NAME=VALUE, with commas in between")
        found[name] = value
    return found
