"""From the files to a configuration, or to every mistake in them at once.

Owns: combining the main file with its drop-ins, which drop-in folder is read and when it must exist, and the place of
each mistake.
Refuses: to open files (`nodeplug.config.files`), and to validate the plugins' own tables: their classes do that.

Drop-ins (`plugins.d/*.toml` beside the main file, unless `drop_in_dir` says otherwise) may hold only `[plugins.*]`
tables; a plugin that is defined in two files is an error that names both. A folder named by `drop_in_dir` must exist.
The default folder may be absent, but must not disappear once a daemon has read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from nodeplug.config import files, selection
from nodeplug.config.files import Document, Unreadable
from nodeplug.config.mistakes import MOST, Location, dotted, explain, first, one_line, unknown
from nodeplug.config.models import Configuration, PluginSection, node_name
from nodeplug.contract.errors import PluginError
from nodeplug.contract.hookspecs import ANSWERS

_DEFAULT_FOLDER: Final = Configuration(version=1).supervisor.drop_in_dir


class ConfigError(PluginError):
    """An unusable configuration; `problems` has one sentence per mistake, each with file, line and key."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake and its place; line 0 if unknown."""

    path: Path
    line: int
    text: str

    @classmethod
    def of(cls, error: Unreadable) -> "Fault":
        """Return the fault for an unreadable file."""
        return cls(error.path, error.line, str(error))


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are defined: the main file, and the file of each plugin's section."""

    main: Document
    sections: Mapping[str, Document] = field(default_factory=dict)

    def file(self, location: Location) -> Document:
        """Return the file of a key."""
        name = location[1] if len(location) > 1 and location[0] == "plugins" else None
        return self.sections.get(str(name), self.main)

    def rank(self, location: Location) -> tuple[bool, str, int]:
        """Return the sort key of a mistake."""
        file = self.file(location)
        return _rank(file.path, file.line(location), self.main.path)

    def fault(self, location: Location, text: str) -> Fault:
        """Return a mistake with its place, on one line: a plugin's exception may have several."""
        file = self.file(location)
        line = file.line(location)
        place = f"{file.path}:{line}" if line else str(file.path)
        return Fault(file.path, line, ": ".join(filter(None, (place, dotted(location), one_line(text)))))

    def tell(self, location: Location, text: str) -> str:
        """Format a sentence as `file:line: key: text`, without the parts that are unknown."""
        return self.fault(location, text).text


@dataclass(frozen=True, slots=True)
class Reading:
    """What the files said.

    Attributes:
        configuration: everything that is valid, as if the rest were absent.
        faults: every mistake.
        places: where things are defined.
        folder: the drop-in folder; None if disabled.
        folder_was_read: it exists.
        identity: equal for two readings of the same files, for the same node.
        elsewhere: why sections are not for this node, by name; in the configuration they are not enabled.
    """

    configuration: Configuration
    faults: tuple[Fault, ...]
    places: Places
    folder: Path | None
    folder_was_read: bool
    identity: tuple[object, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """One sentence per mistake, up to a limit."""
        return self.told(())

    def told(self, more: Iterable[Fault]) -> tuple[str, ...]:
        """Return these mistakes and `more` of them, sorted by file and line, up to a limit."""
        return _ordered([*self.faults, *more], self.places.main.path)

    def whole(self) -> Configuration:
        """Return the configuration, or raise ConfigError if there are mistakes."""
        if self.mistakes:
            raise ConfigError(self.mistakes)
        return self.configuration


def load(path: Path, root: Path | None = None) -> Configuration:
    """Read the main file and its drop-ins, or raise ConfigError; `root` overrides `supervisor.root`."""
    return read(path, root).whole()


def read(
    path: Path, root: Path | None = None, before: Reading | None = None, node: selection.Node | None = None
) -> Reading:
    """Read the main file and its drop-ins, collecting mistakes.

    Args:
        path: the main file.
        root: overrides `supervisor.root`.
        before: the reading in force in a running daemon: its drop-in folder is read again, and must still exist. If the
            main file names another one, only its existence is checked.
        node: for which one; this node, with the labels that are known of it, by default.
    """
    mistakes: list[Fault] = []
    main = _main(path, mistakes)
    collected = _Collected(main, mistakes)
    folder, named = _folder(main, path)
    if before is not None and folder != before.folder:
        if folder is not None and named and not folder.is_dir():
            mistakes.append(_absent(main, folder))
        folder, named = before.folder, True
    gone = before is not None and before.folder_was_read
    was_read = folder is not None and collected.add_folder(folder, named=named, gone=gone)
    collected.move(root)
    configuration = collected.validated()
    configuration, elsewhere = selection.for_node(configuration, node or _this_node(configuration))
    identity = tuple(file.mark for file in collected.files), tuple(mistakes), was_read, tuple(elsewhere.items())
    return Reading(configuration, tuple(mistakes), collected.places, folder, was_read or gone, identity, elsewhere)


def read_alone(main: Document, root: Path | None = None) -> Reading:
    """Return what one file says, which holds everything; `root` overrides `supervisor.root`."""
    mistakes: list[Fault] = []
    collected = _Collected(main, mistakes)
    collected.move(root)
    configuration = collected.validated()
    configuration, elsewhere = selection.for_node(configuration, _this_node(configuration))
    return Reading(configuration, tuple(mistakes), collected.places, None, False, (), elsewhere)


def _this_node(configuration: Configuration) -> selection.Node:
    supervisor = configuration.supervisor
    name = node_name(supervisor)
    return selection.known(supervisor.paths.state, name) if selection.by_labels(configuration) else selection.Node(name)


def load_drop_in(path: Path) -> Mapping[str, PluginSection]:
    """Return the sections of one drop-in, at least one, by name; or raise ConfigError."""
    mistakes: list[Fault] = []
    collected = _Collected(Document(path, (str(path), 0, 0, 0), {"version": 1}), mistakes)
    collected.add(path)
    if not collected.sections and not mistakes:
        mistakes.append(
            Fault(path, 0, f"{path}: has no [plugins.NAME] table; give a file as in /etc/nodeplug/plugins.d")
        )
    configuration = collected.validated()
    if mistakes:
        raise ConfigError(_ordered(mistakes, path))
    return configuration.plugins


def _ordered(mistakes: Iterable[Fault], main: Path) -> tuple[str, ...]:
    """Return the sentences sorted for fixing: the main file first, then by file and line."""
    ordered = sorted(mistakes, key=lambda fault: _rank(fault.path, fault.line, main))
    return first(tuple(dict.fromkeys(fault.text for fault in ordered)))


def _rank(path: Path, line: int, main: Path) -> tuple[bool, str, int]:
    return path != main, str(path), line


def _main(path: Path, mistakes: list[Fault]) -> Document:
    """Read the main file; of a broken one, at least the places, if possible."""
    try:
        return files.read(path, "; `--config FILE` names another")
    except Unreadable as error:
        mistakes.append(Fault.of(error))
    supervisor = files.salvage(path).get("supervisor", {})
    return Document(path, (str(path), 0, 0, 0), {"version": 1, "supervisor": supervisor})


def _folder(main: Document, path: Path) -> tuple[Path | None, bool]:
    """Return the drop-in folder, and whether the file names it."""
    supervisor = main.tables.get("supervisor")
    name = supervisor.get("drop_in_dir") if isinstance(supervisor, dict) else None
    if not isinstance(name, str):
        return path.parent / _DEFAULT_FOLDER, False
    return (path.parent / name if name else None), True


def _absent(main: Document, folder: Path) -> Fault:
    text = f"the folder {folder} does not exist; make it, name another, or write '' for none"
    return Places(main).fault(("supervisor", "drop_in_dir"), text)


class _Collected:
    """The tables of all files, and the file of each section."""

    def __init__(self, main: Document, mistakes: list[Fault]) -> None:
        self.document = {
            key: dict(value) if key == "plugins" and isinstance(value, dict) else value
            for key, value in main.tables.items()
        }  # the sections of the drop-ins are added to those of the main file
        self.mistakes = mistakes
        self.files = [main]
        self.sections: dict[str, Document] = dict.fromkeys(_sections(main.tables), main)
        self.places = Places(main, self.sections)
        self._tell_excess(main)

    def add_folder(self, folder: Path, *, named: bool, gone: bool) -> bool:
        """Add every drop-in of a folder; return whether the folder exists."""
        try:
            for path in files.drop_ins(folder):
                self.add(path)
        except FileNotFoundError:
            if gone:
                text = f"{folder}: the drop-in folder is gone; put it back; another one, or none, takes a restart"
                self.mistakes.append(Fault(folder, 0, text))
            elif named or folder.is_symlink():  # somebody wants a folder there, but it is missing
                self.mistakes.append(_absent(self.places.main, folder))
            return False
        except Unreadable as error:
            self.mistakes.append(Fault.of(error))
        return True

    def add(self, path: Path) -> None:
        try:
            file = files.read(path)
        except Unreadable as error:
            self.mistakes.append(Fault.of(error))
            return
        self.files.append(file)
        self._tell_excess(file)
        own = Places(file)
        self.mistakes += [
            own.fault((key,), "a drop-in holds [plugins.*] tables alone; move this key to the main file")
            for key in file.tables
            if key != "plugins"
        ]
        if "plugins" in file.tables and not isinstance(file.tables["plugins"], dict):
            self.mistakes.append(own.fault(("plugins",), "must be a table"))
        for name, section in _sections(file.tables).items():
            if name in self.sections:
                first = self.sections[name].path
                text = f"already defined in {first}; remove one of the two"
                self.mistakes.append(own.fault(("plugins", name), text))
                continue
            if not isinstance(self.document.get("plugins"), dict):
                self.document["plugins"] = {}
            self.sections[name] = file
            self.document["plugins"][name] = section

    def move(self, root: Path | None) -> None:
        """Put every path below another root, if one is given."""
        named = self.document.get("supervisor", {})
        if root is not None and isinstance(named, dict):
            self.document["supervisor"] = {**named, "root": root}

    def validated(self) -> Configuration:
        """Return the valid part of the configuration, and note the mistakes."""
        document = self.document
        try:
            configuration = Configuration.model_validate(document)
        except ValidationError as error:
            found = explain(error, Configuration, document, self.places.rank)
            self.mistakes += [self.places.fault(one.location, _text(one.location, one.text)) for one in found]
            configuration = Configuration.model_validate(_without(document, [one.location for one in found]))
        self._tell_hooks(configuration)
        return configuration

    def _tell_hooks(self, configuration: Configuration) -> None:
        wrong = [
            (name, hook)
            for name, section in configuration.plugins.items()
            for hook in section.deadline
            if hook not in ANSWERS
        ]
        for number, (name, hook) in enumerate(wrong):
            text = unknown("hook", hook, tuple(ANSWERS)) if number < MOST else "unknown hook"
            self.mistakes.append(self.places.fault(("plugins", name, "deadline", hook), text))

    def _tell_excess(self, file: Document) -> None:
        self.mistakes += [Places(file).fault(location, text) for location, text in file.excess]
        for location, _ in file.excess:  # later steps cannot handle it
            file.tables.pop(str(location[0]), None)
            if file is self.places.main:
                self.document.pop(str(location[0]), None)


def _sections(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    plugins = tables.get("plugins", {})
    return plugins if isinstance(plugins, dict) else {}


def _text(location: Location, text: str) -> str:
    if location == ("version",) and text.startswith("is missing"):
        return "is missing; the main file begins with `version = 1`; a drop-in is no main file"
    if len(location) == 3 and location[0] == "plugins" and text.startswith("unknown key"):
        return f"{text}; the plugin's own keys belong into [{dotted(location[:2])}.config]"
    return text


def _without(document: Mapping[str, Any], wrong: Iterable[Location]) -> dict[str, Any]:
    """Return a document without its wrong sections and top-level keys."""
    left = {"version": 1, **{key: value for key, value in document.items() if key != "version"}}
    for table in ("plugins", "supervisor"):
        if isinstance(left.get(table), dict):
            left[table] = dict(left[table])
    for location in wrong:
        match location:
            case ("plugins", name, *_) if isinstance(left.get("plugins"), dict):
                left["plugins"].pop(name, None)
            case ("supervisor", "root", *_):
                left.pop("supervisor", None)
            case ("supervisor", key, *_) if isinstance(left.get("supervisor"), dict):
                left["supervisor"].pop(key, None)
            case (str() as key, *_) if key != "version":
                left.pop(key, None)
    return left
