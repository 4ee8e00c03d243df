"""What a configuration comes to before anything is started.

Owns: the effective configuration with every default, the refusals with file and key, and the rows of `nodeplug plugins`
without a daemon.
Refuses: to start plugins, and to print.
"""

from pathlib import Path
from typing import Any

from nodeplug import status
from nodeplug.config import Configuration, origins
from nodeplug.errors import PluginError
from nodeplug.install.deployment import Inspected
from nodeplug.registry import find, validate_config
from nodeplug.runner import Runner


def refusals(inspected: Inspected, config: Path) -> list[str]:
    """Return one sentence per mistake in the plugins' tables, each with its file.

    Args:
        inspected: the loaded configuration.
        config: the main file.
    """
    files = origins(config)
    return [f"{files[name]}: {line}" for name, reason in inspected.refused.items() for line in reason.splitlines()]


def effective(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration with every default, those of the plugins' own tables included.

    A plugin's own table that cannot be validated stays as it was written: `refusals` tells what is wrong with it.
    """
    document: dict[str, Any] = configuration.model_dump(mode="json")
    for name, section in configuration.plugins.items():
        try:
            found = find(section.uses or name)
            document["plugins"][name]["config"] = validate_config(name, found, section.config).model_dump(mode="json")
        except PluginError:
            continue
    return document


def rows_of(inspected: Inspected) -> list[dict[str, Any]]:
    """Describe the plugins in the shape of the daemon's status; what could start is told as stopped."""
    rows = status.plugins(inspected.states.values(), Runner(), {})
    return [{**row, "state": row["state"] if row["state"] == "refused" else "stopped"} for row in rows]
