"""Inline FlexVolumes in manifests become inline CSI volumes; every other byte stays as it is.

Owns: finding them in YAML (and JSON, which is YAML), and the changes to the text.
Refuses: files (the command reads and writes), PersistentVolumes (`volumes`), and what only looks like YAML, as
templates of Helm do.

A parser says where each key and value stands; the text between is never written anew, so that comments, order and
quotes stay. A library that writes YAML keeps comments, too, but neither line breaks nor indentation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import yaml

from nodeplug.contract.errors import InvalidRequest
from nodeplug.migration.volumes import KUBELETS

_KEYS: Final = {
    "driver": "driver",
    "fsType": "fsType",
    "readOnly": "readOnly",
    "options": "volumeAttributes",
    "secretRef": "nodePublishSecretRef",
}
"""Fields of an inline FlexVolume (FlexVolumeSource), and what CSI calls them (CSIVolumeSource)."""


@dataclass(frozen=True, slots=True)
class Target:
    """The CSI driver of a FlexVolume driver.

    Attributes:
        driver: its name.
        inline: a pod may name its volumes.
    """

    driver: str
    inline: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The outcome for one text.

    Attributes:
        text: with all changes.
        changed: how many volumes.
        left: why others were not changed, each with its line.
    """

    text: str
    changed: int
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


def rewrite(text: str, targets: Mapping[str, Target]) -> Rewritten:
    """Rewrite every inline FlexVolume.

    Args:
        text: one or more documents.
        targets: by FlexVolume driver.

    Raises:
        InvalidRequest: it is no YAML; the message has the line.
    """
    try:
        documents = [one for one in yaml.compose_all(text, Loader=yaml.SafeLoader) if one is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "the text"
        raise InvalidRequest(f"{where} is not YAML; a template has to be rendered first") from None
    edits: dict[int, _Edit] = {}
    left: list[str] = []
    changed = 0
    seen: set[int] = set()
    for document in documents:
        for volume in _inline_volumes(document, seen):
            try:
                made = list(_edits(text, volume, targets))
            except InvalidRequest as error:
                left.append(f"line {volume.start_mark.line + 1}: {error.message}")
                continue
            changed += 1
            edits |= {edit.start: edit for edit in made}
    for edit in sorted(edits.values(), key=lambda one: -one.start):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return Rewritten(text, changed, tuple(left))


def _inline_volumes(node: yaml.Node, seen: set[int]) -> Iterator[yaml.MappingNode]:
    """Yield each element of a list `volumes` that is a FlexVolume; an anchor and its aliases are one."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from _inline_volumes(one, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.value == "volumes" and isinstance(value, yaml.SequenceNode):
            yield from (
                one for one in value.value if isinstance(one, yaml.MappingNode) and "flexVolume" in _fields(one)
            )
        yield from _inline_volumes(value, seen)


def _fields(node: yaml.MappingNode) -> dict[str, tuple[yaml.ScalarNode, yaml.Node]]:
    return {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _edits(text: str, volume: yaml.MappingNode, targets: Mapping[str, Target]) -> Iterator[_Edit]:
    key, source = _fields(volume)["flexVolume"]
    if not isinstance(source, yaml.MappingNode):
        raise InvalidRequest("flexVolume is no mapping")
    fields = _fields(source)
    driver = fields["driver"][1] if "driver" in fields else None
    if not isinstance(driver, yaml.ScalarNode):
        raise InvalidRequest("flexVolume has no driver")
    target = targets.get(driver.value)
    if target is None:
        raise InvalidRequest(f"no enabled plugin serves {driver.value}")
    if not target.inline:
        raise InvalidRequest(
            f"{driver.value} has no inline CSI volumes, whose options any author of a pod may choose: use a claim"
        )
    _refuse_options(fields)
    yield _replaced(text, key, "csi")
    yield _replaced(text, driver, target.driver)
    for name, (field, _) in fields.items():
        if name not in _KEYS:
            raise InvalidRequest(f"flexVolume has an unknown field {name}")
        if _KEYS[name] != name:
            yield _replaced(text, field, _KEYS[name])


def _refuse_options(fields: Mapping[str, tuple[yaml.ScalarNode, yaml.Node]]) -> None:
    options = fields["options"][1] if "options" in fields else None
    theirs = (
        [name for name in _fields(options) if name.startswith(KUBELETS)]
        if isinstance(options, yaml.MappingNode)
        else []
    )
    if theirs:
        raise InvalidRequest(f"its options {', '.join(theirs)} are kubelet's own: remove them")


def _replaced(text: str, node: yaml.ScalarNode, word: str) -> _Edit:
    start, end = node.start_mark.index, node.end_mark.index
    quote = text[start] if text[start] in "\"'" else ""
    return _Edit(start, end, f"{quote}{word}{quote}")
