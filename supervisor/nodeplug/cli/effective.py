"""What a configuration amounts to before anything is started.

Owns: the effective configuration with defaults, every mistake with its place, the summary, and the rows of `nodeplug
plugins` without a daemon.
Refuses: to start plugins, and to print.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.config import Fault, PluginSection, Reading
from nodeplug.contract.values import ClaimKind
from nodeplug.hosting.registry import Registry
from nodeplug.install.deployment import inspect
from nodeplug.loading.classes import Misconfigured, PluginRefused, validate_config
from nodeplug.loading.discovery import find, installed
from nodeplug.observe import status

_COUNTED: Final[Mapping[ClaimKind, str]] = {
    "device": "resource",
    "cni": "network",
    "volume": "volume driver",
    "extender": "scheduler extender",
}


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known of a configuration without starting it: its defaults, its mistakes, its valid plugins."""

    document: dict[str, Any]
    problems: tuple[str, ...]
    registry: Registry
    elsewhere: Mapping[str, str]

    @property
    def summary(self) -> str:
        """Count what is enabled."""
        names = Counter(claim.kind for loaded in self.registry.plugins.values() for claim in loaded.claims)
        parts = [_number(len(self.registry.plugins), "plugin")]
        parts += [_number(names[kind], word) for kind, word in _COUNTED.items() if names[kind]]
        return f"{', '.join(parts)}{self._users}{self._pythons}{self._others}"

    @property
    def _pythons(self) -> str:
        """Say which plugins have a Python of their own."""
        sections = {name: loaded.section for name, loaded in self.registry.plugins.items()}
        return "".join(f"; {one.python} runs: {name}" for name, one in sections.items() if one.python)

    @property
    def _others(self) -> str:
        """Say which sections are for other nodes."""
        return "".join(f"; not for this node: {name} ({reason})" for name, reason in self.elsewhere.items())

    @property
    def _users(self) -> str:
        """Say as whom processes of plugins run, so that nobody gives one to root unawares."""
        found: dict[str, list[str]] = {}
        for name, loaded in self.registry.plugins.items():
            if loaded.isolation == "process" and loaded.privileges is not None:
                found.setdefault(loaded.privileges.name, []).append(name)
        return "".join(f"; runs as {user}: {', '.join(names)}" for user, names in found.items())


def examine(reading: Reading) -> Examined:
    """Validate the plugins' own tables too, and construct the plugins without mistakes.

    A table that fails validation stays in the document as written.
    """
    configuration, fault = reading.configuration, reading.places.fault
    document: dict[str, Any] = configuration.model_dump(mode="json")
    if not reading.folder_was_read:
        document["supervisor"].pop("drop_in_dir")  # a folder that is named must exist
    faults: list[Fault] = []
    good: dict[str, PluginSection] = {}
    known = installed()
    for name, section in configuration.plugins.items():
        if section.python:  # only that Python can import the class, in the process in which `inspect` loads it
            good[name] = section
            continue
        wanted = section.enabled or name in reading.elsewhere  # a mistake in a section for other nodes is one, too
        try:
            own = validate_config(name, find(section.uses or name, known), section.config)
            document["plugins"][name]["config"] = own.model_dump(mode="json")
            good[name] = section
        except Misconfigured as error:
            faults += [fault(one.location, one.text) for one in error.mistakes] if wanted else []
        except PluginRefused as error:
            faults += [fault(("plugins", name), str(error))] if wanted else []
    registry = inspect(configuration.model_copy(update={"plugins": good}))
    faults += [fault(("plugins", slot.name), slot.reason) for slot in registry.slots.values() if slot.loaded is None]
    return Examined(document, reading.told(faults), registry, reading.elsewhere)


def rows_of(reading: Reading) -> list[dict[str, Any]]:
    """Describe the plugins in the shape of the daemon's status; those that could start are shown as stopped."""
    registry = inspect(reading.configuration, reading.places.tell)
    rows = status.plugins(registry.slots.values(), {}, {})
    return [{**row, "state": row["state"] if row["state"] == "refused" else "stopped"} for row in rows]


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
