"""The configuration that was in force last, for a start whose files are wrong.

Owns: `last-good.toml` in the state folder: the tables that were in force, section by section, as the files had them.
Refuses: to judge a configuration, and to be used while a daemon runs: then the running configuration itself stays.

One ConfigMap holds for all nodes, and a mistake in it must not take them down one by one as their daemons are started
again. The file has what the configuration has, secrets included, so only its owner may read it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nodeplug.config.files import Document, Unreadable
from nodeplug.config.files import read as read_file
from nodeplug.config.models import PluginSection
from nodeplug.config.reading import ConfigError, Reading, read_alone
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import write_durably

NAME: Final = "last-good.toml"
_HEAD: Final = b"# Written by nodeplug: what was in force last, for a start with files that are wrong. Edit those.\n"


def instead(reading: Reading, root: Path | None) -> Reading:
    """Return the configuration that was in force last, for a start with files that have mistakes.

    Its drop-in folder is that of the files, which stay what the daemon looks at.

    Args:
        reading: what the files say; it has mistakes.
        root: the value of `--root`.

    Raises:
        ConfigError: there is none, or it cannot be used either; with the mistakes of the files.
    """
    recorded = _recorded(reading.configuration.supervisor.paths.state, root)
    if recorded is None or recorded.mistakes:
        raise ConfigError(reading.mistakes)
    return replace(recorded, folder=reading.folder, folder_was_read=reading.folder_was_read, identity=((), NAME))


def sections(state: Path, names: Collection[str]) -> Mapping[str, PluginSection]:
    """Return those of the sections that were in force last; none if that is not known."""
    recorded = _recorded(state, None)
    known = {} if recorded is None else recorded.configuration.plugins
    return {name: known[name] for name in names if name in known and known[name].enabled}


def write(state: Path, reading: Reading, refused: Collection[str]) -> None:
    """Record what is in force; of `refused` sections, what was before.

    Raises:
        PluginError: the folder cannot be written.
    """
    import tomli_w  # noqa: PLC0415 - wanted once per configuration, and not in the first tenth of a second

    before = _tables(state) if refused else {}
    plugins = {name: file.tables["plugins"][name] for name, file in reading.places.sections.items()}
    for name in refused:
        plugins.pop(name, None)
        if name in before.get("plugins", {}):
            plugins[name] = before["plugins"][name]
    tables = {**reading.places.main.tables, "plugins": plugins}
    data = _HEAD + tomli_w.dumps(tables).encode()
    if not _is_same(state / NAME, data):
        write_durably(state / NAME, data)


def _is_same(path: Path, data: bytes) -> bool:
    try:
        return read_bounded(path) == data
    except OSError:
        return False


def _recorded(state: Path, root: Path | None) -> Reading | None:
    try:
        return read_alone(read_file(state / NAME), root)
    except Unreadable:
        return None


def _tables(state: Path) -> dict[str, Any]:
    try:
        document: Document = read_file(state / NAME)
    except PluginError:
        return {}
    return document.tables
